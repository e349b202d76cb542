"""What a rank waits for from the other sites: a round that is under way, or what each of them says once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from typing_extensions import override

from geocomm.core.errors import CorruptDataError, ReplicaMismatchError
from geocomm.group.planning.regions import Regions
from geocomm.sync.local_steps.fixed.site_messages import AverageHeader, Digest, OfferHeader
from geocomm.sync.local_steps.model.fragments import Fragment
from geocomm.sync.local_steps.outer.delta_frames import DeltaFrames, most_bytes
from geocomm.sync.local_steps.outer.round_records import RoundRecord
from geocomm.sync.local_steps.outer.rounds import Average, Coding, Entry, Reduction, SiteOffer, wait_for


@dataclass(eq=False)
class Exchange(Reduction):
    """A round that is under way."""

    offer: SiteOffer
    digest: Digest | None
    fragment: Fragment
    delta: torch.Tensor
    residual: torch.Tensor | None
    coding: Coding
    sites: Sequence[str]
    own: str
    """The site of this rank."""
    record: RoundRecord
    future: Future[Average] = field(default_factory=Future[Average])
    offers: dict[str, SiteOffer] = field(default_factory=dict[str, SiteOffer])
    frames: dict[str, DeltaFrames] = field(default_factory=dict[str, DeltaFrames])
    """By the site that sent them: of its delta, or of its region's average."""
    own_average: DeltaFrames | None = None
    """What this site has made of the frames that it adds up, where another site averages all."""
    average: DeltaFrames | None = None
    """What an aggregator that is another site has sent; it is empty where no site counted."""
    entry: Entry | None = None
    new_residual: torch.Tensor | None = None

    @property
    def aggregator(self) -> str | None:
        """The site that averages; None: each does."""
        return self.coding.aggregator(self.sites, self.offer.round)

    @cached_property
    def regions(self) -> Regions:
        """Of the sites."""
        return Regions(self.sites, self.coding.regions)

    @cached_property
    def parts(self) -> Mapping[str, tuple[str, ...]]:
        """What this site adds up, in its order: by who sends a frame, the sites whose deltas are in it."""
        to = self.aggregator
        if to is None or self.is_checked_here:
            return {site: (site,) for site in self.sites}
        return self.regions.parts(self.own, to) if self.own in self.regions.adders(to) else {}

    @property
    def is_averaged_here(self) -> bool:
        """Whether this site averages what is of all sites."""
        return self.aggregator in (None, self.own)

    @property
    def is_checked_here(self) -> bool:
        """Whether this site makes the average of another one again."""
        return self.coding.checker(self.sites, self.offer.round) == self.own

    @property
    def adders(self) -> set[str]:
        """The other sites to which the delta of this one goes, where not to all."""
        to, checker = self.aggregator, self.coding.checker(self.sites, self.offer.round)
        found = [None if to is None else self.regions.adder(self.own, to), checker]
        return {site for site in found if site is not None and site != self.own}

    @property
    def senders(self) -> list[str]:
        """The other sites that send frames to this one."""
        averages = [] if self.is_averaged_here or self.aggregator is None else [self.aggregator]
        return [site for site in self.parts if site != self.own] + averages

    @property
    def missing(self) -> list[str]:
        """The sites that have not begun the round; where all have, those whose frames have not come."""
        absent = [site for site in self.sites if site not in self.offers]
        absent = absent or [site for site in self.parts if site not in self.frames]
        if absent or self.is_averaged_here or self.average is not None:
            return absent
        return self.senders[-1:]

    @override
    def is_done(self) -> bool:
        return self.future.done()

    @override
    def wait(self) -> Average:
        return result_of(self, f"round {self.offer.round}")

    def check_average(self) -> None:
        """Raise ReplicaMismatchError where the aggregator's average is not what this site makes of the same deltas."""
        mine, theirs = self.own_average, self.average
        if not self.is_checked_here or mine is None or theirs is None:
            return
        if mine.sizes != theirs.sizes or (mine.wire_bytes and not torch.equal(mine.content, theirs.content)):
            raise ReplicaMismatchError(
                f"local steps, round {self.offer.round}: the average of site {self.aggregator!r} is not what site "
                f"{self.own!r} makes of the same deltas: one of the two computes wrongly, or lies. Resume from a "
                "checkpoint; if it comes again, leave out one of them"
            )

    def check_sizes(self, site: str, header: OfferHeader | AverageHeader) -> None:
        """Raise CorruptDataError for frames of a size that no codec gives."""
        sizes = header.coded_bytes, header.exact_bytes
        for size, most in zip(sizes, most_bytes(self.fragment, self.coding), strict=True):
            if not (0 < size <= most or size == most == 0):
                raise CorruptDataError(
                    f"local steps, round {self.offer.round}: site {site!r} announces a frame of {size} bytes, of which "
                    f"there can be {most}"
                )


@dataclass(eq=False)
class Meeting:
    """What every site says once: a number, or that it begins no more rounds."""

    sites: Sequence[str]
    said: dict[str, int]
    future: Future[int] = field(default_factory=Future[int])
    """The largest number, once all have said theirs."""

    @property
    def missing(self) -> list[str]:
        """The sites that have not said it."""
        return [site for site in self.sites if site not in self.said]


Awaited = Exchange | Meeting
"""What a rank waits for from the other sites."""


def result_of(awaited: Awaited, what: str) -> Any:
    """Wait for it, with a word to the log now and then. what: for the log."""
    future: Future[Any] = awaited.future
    wait_for(lambda seconds: bool(futures.wait([future], seconds).done), what, lambda: sites_text(awaited.missing))
    return future.result()


def sites_text(sites: Sequence[str]) -> str:
    """The sites as messages name them: "site 'a'", "sites 'a', 'b'"."""
    return f"site{'s' if len(sites) > 1 else ''} {', '.join(map(repr, sites))}"
