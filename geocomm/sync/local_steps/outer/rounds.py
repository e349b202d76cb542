"""What the outer step asks of whatever carries deltas between the sites: it knows no sockets itself."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import torch
from pydantic import Field, NonNegativeInt

from geocomm.core.errors import InvalidArgumentError, ReplicaMismatchError
from geocomm.core.link_table import Groups
from geocomm.core.message_log import logger
from geocomm.core.patience import Patience
from geocomm.core.units import count_text
from geocomm.elastic.journal.average_checks import ONE_IN
from geocomm.sync.local_steps.model.fragments import Fragment
from geocomm.sync.local_steps.model.site_group import SiteFacts
from geocomm.sync.local_steps.outer.averaging import Averaging, is_mean
from geocomm.sync.local_steps.settings.local_settings import Reduce


@dataclass(frozen=True)
class Terms:
    """What must be the same at every site before a run begins or goes on."""

    settings: Mapping[str, str]
    """By name, as text."""
    tensors: Mapping[str, str]
    """Dtype and shape by parameter."""
    values: Mapping[str, str]
    """Digests by name; one that only some ranks have is compared among those."""


@dataclass(frozen=True)
class SiteOffer:
    """A site's part of a round, without the delta; another site's is checked where it is received."""

    round: NonNegativeInt
    fragment: NonNegativeInt
    step: NonNegativeInt
    """Optimizer steps of the site when the round began."""
    base: NonNegativeInt
    """Outer steps that the fragment's anchor has taken: the delta is the difference to that anchor."""
    weight: NonNegativeInt
    """Steps, or tokens, that the delta stands for; 0: it does not count."""
    every: NonNegativeInt = 0
    """How many steps the site wants between two rounds of a fragment from now on; 0: as many as now."""
    squared_norm: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """The squared L2 norm of the delta, before it is compressed."""
    last: bool = False
    """Whether the round is the fragment's last: it carries the site's weights in place of a delta, and its result is
    their mean."""


@dataclass(frozen=True)
class Entry:
    """What is decided about a round before bytes move."""

    round: int
    fragment: int
    base: int
    members: tuple[str, ...]
    """Sites, in the order in which all of them add up the deltas."""
    steps: tuple[int, ...]
    """Optimizer steps of the members when they began the round."""
    weights: tuple[int, ...]
    """The weights of the members; 0: the site does not count, since its delta is not finite or it has taken no step."""
    every: int = 0
    """The most that a member wants between two rounds of a fragment; 0: none said."""
    squared_norms: tuple[float, ...] = ()
    """The squared L2 norms of the members' deltas."""
    last: bool = False
    """Whether the members sent their weights, and the result is the mean of these."""

    def weight_of(self, sites: Collection[str]) -> int:
        """Of some members together."""
        return sum(weight for site, weight in zip(self.members, self.weights, strict=True) if site in sites)

    def agreement(self, averaging: Averaging, mean_norm: float) -> float | None:
        """How far the sites learn the same: |mean delta|^2 / mean |delta|^2, from 1 (equal deltas) down to 1 / sites,
        where the deltas are as good as noise.

        mean_norm: the L2 norm of the averaged delta. None where the average is no mean, or no site has moved.
        """
        total = sum(self.weights)
        squares = sum(weight * one for weight, one in zip(self.weights, self.squared_norms, strict=True))
        if not squares or not is_mean(averaging):
            return None
        return mean_norm**2 * total / squares


@dataclass(frozen=True)
class Coding:
    """How deltas travel, and what becomes of them; equal at every site."""

    codec: str
    decay: float
    """The factor of the residual of error feedback in each round."""
    averaging: Averaging
    reduce: Reduce = "all"
    regions: Groups = ()
    """The sites by region; nothing: each is a region of its own."""

    @property
    def of_last(self) -> Coding:
        """That of last rounds, which carry weights."""
        return Coding("none", 1.0, "mean", self.reduce, self.regions)

    def aggregator(self, sites: Sequence[str], number: int) -> str | None:
        """The one of the sites that averages the deltas of the round of this number; None: each does.

        Sites take turns over the rounds: so the work is shared also where they are more than the fragments.
        """
        return None if self.reduce == "all" else sites[number % len(sites)]

    def checker(self, sites: Sequence[str], number: int) -> str | None:
        """The site that makes the average of a round once more, and compares; None: nobody does, as in most rounds. By
        chance, which is the same at all sites: so each site's averages are looked at by each other one.

        With regions nobody has all deltas.
        """
        chance = zlib.crc32(number.to_bytes(8, "little"))
        if self.reduce == "all" or self.regions or len(sites) < 2 or chance % ONE_IN:
            return None
        return sites[(number + 1 + chance // ONE_IN % (len(sites) - 1)) % len(sites)]

    def of_region(self, site: str) -> int:
        """The number of a site's region, from 1 on."""
        return 1 + next(number for number, group in enumerate(self.regions) if site in group)


@dataclass(frozen=True)
class Average:
    """The result of a round: everything but `residual` and `wire_bytes` has equal bits at every site."""

    entry: Entry
    values: torch.Tensor | None
    """float32, 1-D, in the order of the fragment; None: no site's delta was finite, and there is no outer step."""
    residual: torch.Tensor | None
    """What the codec has lost of this site's delta by now; takes the old one's place when the round is committed."""
    wire_bytes: int
    """Compressed bytes of this site's delta, once."""


class Reduction(Protocol):
    """A round that is under way."""

    def is_done(self) -> bool:
        """Whether `wait` would return at once, or raise."""
        ...

    def wait(self) -> Average:
        """Block until the average is there. May be called again. Raises GeocommError."""
        ...


class Rounds(SiteFacts, Protocol):
    """Carries rounds between the sites. Calls come from one thread, in the order of the rounds, alike at every site.

    A round: `reduce`, later `Reduction.wait`, and `commit`; others may begin in between. Only `agree` and
    `wait` block. A round that fails at one site fails at all, and leaves anchors, residuals and weights as they were.
    Of the ranks of a site, the one that owns the fragment has the round; `agree`, `furthest` and `close` are for all.
    """

    @property
    def line_seconds(self) -> float:
        """The time for which deltas of this rank's rounds were coded or on the line so far. Rounds under way together
        count once; waiting for another site to begin a round does not count."""
        ...

    def agree(self, terms: Terms) -> None:
        """Compare the terms with those of the other sites (`check_terms`); raises at every site where they differ."""
        ...

    def refuse(self, reason: str) -> None:
        """Say, in place of `agree`, that this site cannot begin: the others' `agree` raises with the reason."""
        ...

    def due(self, number: int, fragment: int) -> None:
        """The schedule asks for a round that `reduce` follows for, now or later. May be called again."""
        ...

    def reduce(
        self, offer: SiteOffer, fragment: Fragment, delta: torch.Tensor, residual: torch.Tensor | None, coding: Coding
    ) -> Reduction:
        """Begin a round with this site's part of it: average `delta` (float32, CPU, 1-D, `fragment.numel` elements).

        The first `fragment.coded_elems` elements go through the codec, with `residual` (as many, or None), which is
        read until the result is there and never written to; the others travel exactly. The residual is in units of the
        site's own delta, before its weight, so it stays right when weights or the number of sites change. A site whose
        offer has weight 0 passes zeros, and keeps its residual. The caller leaves both tensors alone until the result
        is there; `delta` is given away, and may become the new residual.
        """
        ...

    def commit(self, number: int, digest: str) -> None:
        """Say what the fragment's state is after the round; a resumed site may commit what it reduced before.

        The digests of the sites are compared at some later call, `close` at the latest: ReplicaMismatchError where
        they differ.
        """
        ...

    def furthest(self, number: int) -> int:
        """The largest of the numbers that the sites give: each that of its next round. Every site calls it."""
        ...

    def close(self) -> None:
        """Compare all that was committed, and let go of everything. Nothing is under way then."""
        ...


def check_terms(terms: Sequence[tuple[str, Terms]]) -> None:
    """Compare the terms of the sites, given by name.

    Raises InvalidArgumentError for a setting, ReplicaMismatchError for a tensor that is not the same at all of them;
    both name it and two sites.
    """
    (first, expected), *others = terms
    for site, found in others:
        for name in [*expected.settings, *(found.settings.keys() - expected.settings.keys())]:
            here, there = expected.settings.get(name, "nothing"), found.settings.get(name, "nothing")
            if here != there:
                raise InvalidArgumentError(
                    f"local steps: {name} is {there} at site {site!r} and {here} at site {first!r}; start all sites "
                    "with the same settings, or from states that were saved together"
                )
        for name in [*expected.tensors, *(found.tensors.keys() - expected.tensors.keys())]:
            here, there = expected.tensors.get(name, "not there"), found.tensors.get(name, "not there")
            if here != there:
                raise _mismatch(name, (site, there), (first, here))
    said: dict[str, tuple[str, str]] = {}
    for site, found in terms:
        for name, value in found.values.items():
            before, expected_value = said.setdefault(name, (site, value))
            if value != expected_value:
                raise _mismatch(name, (site, value), (before, expected_value))


def _mismatch(name: str, one: tuple[str, str], other: tuple[str, str]) -> ReplicaMismatchError:
    error = ReplicaMismatchError(
        f"local steps: {name} is {one[1]} at site {one[0]!r} and {other[1]} at site {other[0]!r}; start all sites "
        "with the same weights, for example from one seed or one checkpoint"
    )
    error.tensor = name
    return error


def decide(offers: Sequence[tuple[str, SiteOffer]]) -> Entry:
    """The entry of a round from the offers of its members. Raises InvalidArgumentError for offers that do not fit."""
    (first, expected), *others = offers
    for site, offer in others:
        if offer.last != expected.last:
            (ended, end), (going, now) = sorted([(first, expected), (site, offer)], key=lambda one: not one[1].last)
            raise InvalidArgumentError(
                f"local steps: site {ended!r} has called finish() after {count_text(end.step, 'step')}, "
                f"and site {going!r} trains on "
                f"after {now.step}; with deterministic=True all sites call finish() after the same number of steps"
            )
        for field in ("round", "fragment", "base"):
            here, there = getattr(expected, field), getattr(offer, field)
            if here != there:
                raise InvalidArgumentError(
                    f"local steps: in round {expected.round}, {field} is {there} at site {site!r} and {here} at site "
                    f"{first!r}; all sites begin with the same settings, or resume from the same checkpoint"
                )
    return Entry(
        expected.round,
        expected.fragment,
        expected.base,
        tuple(site for site, _ in offers),
        tuple(offer.step for _, offer in offers),
        tuple(offer.weight for _, offer in offers),
        max(offer.every for _, offer in offers),
        tuple(offer.squared_norm for _, offer in offers),
        expected.last,
    )


def log_wait(patience: Patience, what: str, whom: str) -> None:
    """Log the wait, where a word is due, and put off the next one."""
    if patience.left_s <= 0:
        logger().warning(f"local steps: {what} has waited {patience.waited_s:.0f} s for {whom}")
        patience.put_off()


def wait_for(is_done: Callable[[float], bool], what: str, whom: Callable[[], str]) -> None:
    """Wait until `is_done(seconds)`, which waits at most that long, says True. Log whom the wait is for, now and
    then."""
    patience = Patience()
    while not is_done(max(patience.left_s, 0.0)):
        log_wait(patience, what, whom())
