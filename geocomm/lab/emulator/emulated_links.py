"""What an emulated wide-area network looks like: its sites and their links."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from pydantic import ValidationError

from geocomm.core.bad_input import EXIT_BAD_INPUT, UserError, first_problem, problem_text
from geocomm.core.link_matrix import (
    DEFAULT_DELAY_S,
    DEFAULT_RATE_BPS,
    PROBABILITIES,
    LinkMatrixError,
    LinkText,
    Matrix,
)
from geocomm.core.site import SiteNameError, check_site_name
from geocomm.core.units import count_text

MAX_SITES = 64
EMULATOR_FAILED = 125
"""Exit status of the emulator when it is the emulator, not a site, that failed."""


class WanError(UserError, RuntimeError):
    """An emulated WAN could not be started, or could not do what it was asked for."""

    exit_status = EMULATOR_FAILED


class WanConfigError(WanError, ValueError):
    """A value that describes the WAN is wrong; the message names the field."""

    exit_status = EXIT_BAD_INPUT


class WanUnavailableError(WanError):
    """This machine does not allow an emulated WAN; the message says what is missing."""


@dataclass(frozen=True)
class EmulatedLink:
    """One direction between two sites."""

    rate_bps: float = DEFAULT_RATE_BPS
    """The rate of IP packets, headers included."""
    delay_s: float = DEFAULT_DELAY_S
    """One way: half of the round-trip time."""
    loss: float = 0.0
    """Probability per TCP segment (or other packet)."""
    queue_bytes: int = 0
    """What may wait before packets are dropped; 0: max(256 KiB, rate * 2 * delay)."""
    up: bool = True
    reorder: float = 0.0
    """Probability per segment to come late, by up to half of the delay (2 ms at least): those behind overtake it."""
    duplicate: float = 0.0
    """Probability per segment to come twice."""
    reset: float = 0.0
    """Probability per segment to be turned into a reset of its TCP connection."""

    def validate(self, where: str = "link") -> None:
        """Raise WanConfigError where a value is impossible; `where` names the link."""
        if not 1e3 <= self.rate_bps <= 1e12:
            raise WanConfigError(f"{where}: rate of {self.rate_bps:g} bit/s is not within 1 kbit to 1000 gbit")
        if not 0 <= self.delay_s <= 60:
            raise WanConfigError(f"{where}: one-way delay of {self.delay_s:g} s is not within 0 to 60 s")
        for name in PROBABILITIES:
            if not 0 <= getattr(self, name) <= 1:
                raise WanConfigError(f"{where}: {name} of {getattr(self, name):g} is not within 0 to 1")
        if self.queue_bytes != 0 and self.queue_bytes < 1500:
            raise WanConfigError(f"{where}: queue of {self.queue_bytes} bytes does not hold one packet of 1500")

    def word(self, name: str) -> str:
        """One field as the emulator reads it."""
        special = {"delay_s": f"delay_ns={round(self.delay_s * 1e9)}", "up": f"up={int(self.up)}"}
        return special.get(name, f"{name}={getattr(self, name)!r}")

    def words(self) -> str:
        """The link as the emulator reads it; probabilities of 0 are left out."""
        names = [field.name for field in fields(self)]
        return " ".join(self.word(name) for name in names if name not in PROBABILITIES or getattr(self, name) > 0)


def link_changes(*, where: str = "", **texts: str | float | bool | None) -> dict[str, Any]:
    """Fields of EmulatedLink out of what a person writes, by the names of LinkText; WanConfigError names `where`."""
    try:
        return LinkText.model_validate(texts).changes()
    except ValidationError as error:
        prefix = f"{where}: " if where else ""
        raise WanConfigError(f"{prefix}{problem_text(first_problem(error), LinkText.model_fields)}") from None


@dataclass(frozen=True)
class EmulatedWan:
    """Sites in order of their rank, and the link of every ordered pair."""

    sites: tuple[str, ...]
    links: Mapping[tuple[str, str], EmulatedLink]

    def __post_init__(self) -> None:
        """Raise WanConfigError unless names are good and unique and every link is there."""
        if not 2 <= len(self.sites) <= MAX_SITES:
            raise WanConfigError(f"sites: {count_text(len(self.sites), 'site')}, possible are 2 to {MAX_SITES}")
        for name in self.sites:
            try:
                check_site_name(name)
            except SiteNameError as error:
                raise WanConfigError(f"sites: {error}") from None
        if len(set(self.sites)) != len(self.sites):
            raise WanConfigError(f"sites: a name occurs twice in {', '.join(self.sites)}")
        for pair in ((src, dst) for src in self.sites for dst in self.sites if src != dst):
            if pair not in self.links:
                raise WanConfigError(f"links: there is none from {pair[0]} to {pair[1]}")
            self.links[pair].validate(f"link {pair[0]} to {pair[1]}")

    @classmethod
    def uniform(cls, sites: int | Sequence[str], link: EmulatedLink | None = None) -> Self:
        """Every link alike. A number of sites names them site0, site1, …"""
        names = tuple(f"site{i}" for i in range(sites)) if isinstance(sites, int) else tuple(sites)
        return cls(names, {(src, dst): link or EmulatedLink() for src in names for dst in names if src != dst})

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> Self:
        """The WAN of a file (`Matrix.read`); `overrides` (fields of EmulatedLink) go over its [default], not over its
        links."""
        try:
            matrix = Matrix.read(path)
        except LinkMatrixError as error:
            raise WanConfigError(str(error)) from None
        try:
            links = matrix.links(overrides).items()
            return cls(tuple(matrix.sites), {pair: EmulatedLink(**fields) for pair, fields in links})
        except WanConfigError as error:
            raise WanConfigError(f"{path}: {error}") from None

    def lines(self) -> list[str]:
        """The sites and links as the emulator reads them."""
        sites = [f"site {name}" for name in self.sites]
        return sites + [f"link {src} {dst} {link.words()}" for (src, dst), link in self.links.items()]
