"""What an emulated wide-area network looks like: its sites, their links, and how people write them down."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from geocomm.units import UnitError, parse_duration, parse_probability, parse_rate, parse_size

MAX_SITES = 64
PROBABILITIES = ("loss", "reorder", "duplicate", "reset")
"""What happens to single segments of a link."""

_SITE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,32}")


class WanError(RuntimeError):
    """An emulated WAN could not be started, or could not do what it was asked for."""


class WanConfigError(WanError, ValueError):
    """A value that describes the WAN is wrong; the message names the field."""


class WanUnavailableError(WanError):
    """This machine does not allow an emulated WAN; the message says what is missing."""


@dataclass(frozen=True)
class Link:
    """One direction between two sites."""

    rate_bps: float = 1e9
    """Of IP packets, headers included."""
    delay_s: float = 0.05
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


def link_changes(
    *,
    rate: str | float | None = None,
    rtt: str | float | None = None,
    delay: str | float | None = None,
    loss: str | float | None = None,
    queue: str | float | None = None,
    up: bool | None = None,
    reorder: str | float | None = None,
    duplicate: str | float | None = None,
    reset: str | float | None = None,
    where: str = "",
) -> dict[str, Any]:
    """Fields of Link out of what a person writes; what is None is left out. `rtt` is twice the one-way `delay`."""
    prefix = f"{where}: " if where else ""
    changes: dict[str, Any] = {}
    if rtt is not None and delay is not None:
        raise WanConfigError(f"{prefix}rtt and delay: give one of them")
    try:
        if rate is not None:
            changes["rate_bps"] = parse_rate(rate, f"{prefix}rate")
        if rtt is not None:
            changes["delay_s"] = parse_duration(rtt, f"{prefix}rtt") / 2
        if delay is not None:
            changes["delay_s"] = parse_duration(delay, f"{prefix}delay")
        for name, text in zip(PROBABILITIES, (loss, reorder, duplicate, reset), strict=True):
            if text is not None:
                changes[name] = parse_probability(text, f"{prefix}{name}")
        if queue is not None:
            changes["queue_bytes"] = parse_size(queue, f"{prefix}queue")
    except UnitError as error:
        raise WanConfigError(str(error)) from None
    if up is not None:
        if not isinstance(up, bool):
            raise WanConfigError(f"{prefix}up: {up!r} is neither true nor false")
        changes["up"] = up
    return changes


_LINK_KEYS = ("rate", "rtt", "delay", "queue", "up", *PROBABILITIES)


def _table(value: object, where: str, allowed: Sequence[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WanConfigError(f"{where}: expected a table, got {value!r}")
    for key in value:
        if key not in allowed:
            raise WanConfigError(f"{where}: unknown key {key!r}; possible are {', '.join(allowed)}")
    return value


@dataclass(frozen=True)
class Topology:
    """Sites in order of their rank, and the link of every ordered pair."""

    sites: tuple[str, ...]
    links: Mapping[tuple[str, str], Link]

    def __post_init__(self) -> None:
        """Raise WanConfigError unless names are good and unique and every link is there."""
        if not 2 <= len(self.sites) <= MAX_SITES:
            raise WanConfigError(f"sites: {len(self.sites)} sites, possible are 2 to {MAX_SITES}")
        for name in self.sites:
            if not isinstance(name, str) or not _SITE_NAME.fullmatch(name):
                raise WanConfigError(f"sites: {name!r} is not a name of letters, digits, '_', '-' and '.' (at most 32)")
        if len(set(self.sites)) != len(self.sites):
            raise WanConfigError(f"sites: a name occurs twice in {', '.join(self.sites)}")
        for pair in ((src, dst) for src in self.sites for dst in self.sites if src != dst):
            if pair not in self.links:
                raise WanConfigError(f"links: there is none from {pair[0]} to {pair[1]}")
            self.links[pair].validate(f"link {pair[0]} to {pair[1]}")

    @classmethod
    def uniform(cls, sites: int | Sequence[str], link: Link | None = None) -> Self:
        """Every link alike. A number of sites names them site0, site1, …"""
        names = tuple(f"site{i}" for i in range(sites)) if isinstance(sites, int) else tuple(sites)
        return cls(names, {(src, dst): link or Link() for src in names for dst in names if src != dst})

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> Self:
        """The topology of a file; `overrides` (fields of Link) go over its [default], not over its links.

        sites = ["frankfurt", "virginia", "tokyo"]
        [default]                                     # all keys optional; also: delay, queue, up, reorder, …
        rate = "1gbit"
        rtt = "100ms"
        loss = "0.1%"
        [[link]]
        between = ["frankfurt", "virginia"]           # both directions
        rtt = "80ms"
        [[link]]
        from = "frankfurt"                            # one direction
        to = "tokyo"
        rate = "100mbit"
        delay = "120ms"                               # one way; `rtt` is twice that
        """
        try:
            document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise WanConfigError(f"matrix: cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise WanConfigError(f"matrix: {path} is not TOML: {error}") from error
        _table(document, str(path), ("sites", "default", "link"))
        names = document.get("sites")
        if not isinstance(names, list):
            raise WanConfigError(f"{path}: sites: expected a list of names, got {names!r}")
        default_table = _table(document.get("default", {}), f"{path}: [default]", _LINK_KEYS)
        default = replace(Link(), **link_changes(**default_table, where=f"{path}: [default]"))
        topology = cls.uniform(names, replace(default, **(overrides or {})))
        links = dict(topology.links)
        entries = document.get("link", [])
        if not isinstance(entries, list):
            raise WanConfigError(f"{path}: link: write [[link]], with two brackets")
        for number, entry in enumerate(entries, start=1):
            where = f"{path}: [[link]] {number}"
            table = _table(entry, where, ("between", "from", "to", *_LINK_KEYS))
            changes = link_changes(**{key: table[key] for key in _LINK_KEYS if key in table}, where=where)
            for pair in _pairs(table, topology.sites, where):
                links[pair] = replace(links[pair], **changes)
        return cls(topology.sites, links)

    def lines(self) -> list[str]:
        """The sites and links as the emulator reads them."""
        sites = [f"site {name}" for name in self.sites]
        return sites + [f"link {src} {dst} {link.words()}" for (src, dst), link in self.links.items()]


def _pairs(table: Mapping[str, Any], sites: Sequence[str], where: str) -> list[tuple[str, str]]:
    """The directed links that a [[link]] speaks of."""
    both = table.get("between")
    if (both is None) == ("from" not in table and "to" not in table):
        raise WanConfigError(f"{where}: give either between = [a, b] or from = a and to = b")
    ends = [table.get("from"), table.get("to")] if both is None else both
    if not isinstance(ends, list) or len(ends) != 2 or ends[0] == ends[1]:
        raise WanConfigError(f"{where}: expected two different sites, got {ends!r}")
    for end in ends:
        if end not in sites:
            raise WanConfigError(f"{where}: unknown site {end!r}; sites are {', '.join(sites)}")
    return [(ends[0], ends[1])] if both is None else [(ends[0], ends[1]), (ends[1], ends[0])]
