"""What an emulated wide-area network looks like: its sites, their links, and how people write them down."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    model_validator,
)

from geocomm.core.model_errors import first_problem, problem_text
from geocomm.core.site import SiteNameError, check_site_name
from geocomm.core.units import parse_duration, parse_probability, parse_rate, parse_size

MAX_SITES = 64
PROBABILITIES = ("loss", "reorder", "duplicate", "reset")
"""What happens to single segments of a link."""


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


def _reader(parse: Callable[[str | float, str], float], name: str) -> Callable[[Any], float | None]:
    return lambda text: None if text is None else parse(text, name)


class LinkText(BaseModel):
    """A link as a person writes it; what is None is left as it is. `rtt` is twice the one-way `delay`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rate: Annotated[float | None, BeforeValidator(_reader(parse_rate, "rate"))] = None
    rtt: Annotated[float | None, BeforeValidator(_reader(parse_duration, "rtt"))] = None
    delay: Annotated[float | None, BeforeValidator(_reader(parse_duration, "delay"))] = None
    queue: Annotated[int | None, BeforeValidator(_reader(parse_size, "queue"))] = None
    up: StrictBool | None = None
    loss: Annotated[float | None, BeforeValidator(_reader(parse_probability, "loss"))] = None
    reorder: Annotated[float | None, BeforeValidator(_reader(parse_probability, "reorder"))] = None
    duplicate: Annotated[float | None, BeforeValidator(_reader(parse_probability, "duplicate"))] = None
    reset: Annotated[float | None, BeforeValidator(_reader(parse_probability, "reset"))] = None

    @model_validator(mode="after")
    def _check_delays(self) -> Self:
        if self.rtt is not None and self.delay is not None:
            raise ValueError("rtt and delay: give one of them")
        return self

    def changes(self) -> dict[str, Any]:
        """Fields of Link."""
        delay_s = self.delay if self.rtt is None else self.rtt / 2
        given = {"rate_bps": self.rate, "delay_s": delay_s, "queue_bytes": self.queue, "up": self.up}
        given |= {name: getattr(self, name) for name in PROBABILITIES}
        return {name: value for name, value in given.items() if value is not None}


class MatrixLink(LinkText):
    """A [[link]] of a matrix: which links it speaks of, and what they are like."""

    between: list[str] | None = None
    from_: str | None = Field(None, alias="from")
    to: str | None = None

    @model_validator(mode="after")
    def _check_ends(self) -> Self:
        if (self.between is None) == (self.from_ is None and self.to is None):
            raise ValueError("give either between = [a, b] or from = a and to = b")
        ends = self.between or [self.from_, self.to]
        if len(ends) != 2 or ends[0] == ends[1] or None in ends:
            raise ValueError(f"expected two different sites, got {ends!r}")
        return self

    def pairs(self) -> list[tuple[str, str]]:
        """The directed links that it speaks of."""
        src, dst = self.between or (self.from_ or "", self.to or "")
        return [(src, dst)] if self.between is None else [(src, dst), (dst, src)]


class Matrix(BaseModel):
    """The document of a matrix file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sites: list[str]
    default: LinkText = LinkText()
    link: list[MatrixLink] = []

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Of a TOML file; WanConfigError names the file and the field."""
        try:
            return cls.model_validate(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise WanConfigError(f"matrix: cannot read {path}: {error.strerror}") from error
        except ValidationError as error:
            raise WanConfigError(f"{path}: {_matrix_problem(error)}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise WanConfigError(f"matrix: {path} is not TOML: {error}") from error


def _matrix_problem(error: ValidationError) -> str:
    problem = first_problem(error)
    match problem["loc"]:
        case ("link",):
            return "link: write [[link]], with two brackets"
        case ("link", int(number), *rest):
            model, where = MatrixLink, f"[[link]] {number + 1}: "
        case ("default", *rest):
            model, where = LinkText, "[default]: "
        case rest:
            model, where = Matrix, ""
    names = [field.alias or name for name, field in model.model_fields.items()]
    return where + problem_text(problem | {"loc": tuple(rest)}, names)


def link_changes(*, where: str = "", **texts: str | float | bool | None) -> dict[str, Any]:
    """Fields of Link out of what a person writes, by the names of LinkText; WanConfigError names `where`."""
    try:
        return LinkText.model_validate(texts).changes()
    except ValidationError as error:
        prefix = f"{where}: " if where else ""
        raise WanConfigError(f"{prefix}{problem_text(first_problem(error), LinkText.model_fields)}") from None


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
        matrix = Matrix.read(path)
        default = replace(Link(), **matrix.default.changes())
        try:
            topology = cls.uniform(matrix.sites, replace(default, **(overrides or {})))
        except WanConfigError as error:
            raise WanConfigError(f"{path}: {error}") from None
        links = dict(topology.links)
        for number, entry in enumerate(matrix.link, start=1):
            for pair in entry.pairs():
                for end in pair:
                    if end not in topology.sites:
                        raise WanConfigError(
                            f"{path}: [[link]] {number}: unknown site {end!r}; sites are {', '.join(topology.sites)}"
                        )
                links[pair] = replace(links[pair], **entry.changes())
        try:
            return cls(topology.sites, links)
        except WanConfigError as error:
            raise WanConfigError(f"{path}: {error}") from None

    def lines(self) -> list[str]:
        """The sites and links as the emulator reads them."""
        sites = [f"site {name}" for name in self.sites]
        return sites + [f"link {src} {dst} {link.words()}" for (src, dst), link in self.links.items()]
