"""A file of sites and the links between them, as people write it: a matrix."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError, model_validator

from geocomm.core.bad_input import first_problem, problem_text
from geocomm.core.units import parse_duration, parse_probability, parse_rate, parse_size

DEFAULT_RATE_BPS = 1e9
DEFAULT_DELAY_S = 0.05
"""One way. These two are what a link has where a file says nothing: as `link_table` assumes."""
PROBABILITIES = ("loss", "reorder", "duplicate", "reset")
"""What happens to single segments of a link."""


class LinkMatrixError(ValueError):
    """A matrix cannot be read, or says what cannot be; the message names the file and the field."""


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
        """What is given, by the names of `geocomm.lab.emulator.emulated_links.EmulatedLink`'s fields."""
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
    regions: dict[str, list[str]] = {}
    prices: dict[str, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]] = {}

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read a TOML file. Raises LinkMatrixError.

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
        [regions]                                     # the others are regions of their own
        atlantic = ["frankfurt", "virginia"]
        [prices]                                      # dollars for a GB that the site sends to another region
        tokyo = 0.09                                  # the others pay nothing
        """
        try:
            matrix = cls.model_validate(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise LinkMatrixError(f"matrix: cannot read {path}: {error.strerror}") from error
        except ValidationError as error:
            raise LinkMatrixError(f"{path}: {_matrix_problem(error)}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise LinkMatrixError(f"matrix: {path} is not TOML: {error}") from error
        for number, entry in enumerate(matrix.link, start=1):
            for site in {site for pair in entry.pairs() for site in pair} - set(matrix.sites):
                raise LinkMatrixError(
                    f"{path}: [[link]] {number}: unknown site {site!r}; sites are {', '.join(matrix.sites)}"
                )
        matrix._check_regions(path)
        for site in matrix.prices.keys() - set(matrix.sites):
            raise LinkMatrixError(f"{path}: [prices]: unknown site {site!r}; sites are {', '.join(matrix.sites)}")
        return matrix

    def _check_regions(self, path: str | os.PathLike[str]) -> None:
        before: dict[str, str] = {}
        for region, members in self.regions.items():
            if not region:
                sites = ", ".join(members) or "none"
                raise LinkMatrixError(f"{path}: [regions]: a region has an empty name (its sites: {sites})")
            if not members:
                raise LinkMatrixError(f"{path}: [regions] {region}: it has no site; name its sites, or leave it out")
            for site in members:
                if site not in self.sites:
                    raise LinkMatrixError(
                        f"{path}: [regions] {region}: unknown site {site!r}; sites are {', '.join(self.sites)}"
                    )
                if before.get(site) == region:
                    raise LinkMatrixError(f"{path}: [regions] {region}: site {site!r} is there twice")
                if site in before:
                    raise LinkMatrixError(
                        f"{path}: [regions] {region}: site {site!r} is in {before[site]!r}, too; keep it in one of them"
                    )
                before[site] = region

    def region_of_sites(self) -> tuple[str, ...] | None:
        """The region of each site, empty for one that is in none; None: the file names no regions."""
        of = {site: region for region, members in self.regions.items() for site in members}
        return tuple(of.get(site, "") for site in self.sites) if of else None

    def price_of_sites(self) -> tuple[float, ...] | None:
        """The dollars of a GB that each site sends to another region; None: the file names no prices."""
        return tuple(self.prices.get(site, 0.0) for site in self.sites) if self.prices else None

    def links(self, overrides: Mapping[str, Any] | None = None) -> dict[tuple[str, str], dict[str, Any]]:
        """What the file says of each directed link, by the names of `LinkText.changes`.

        Its [[link]]s, the later over the earlier ones, go over `overrides`, and these over its [default].
        """
        default = self.default.changes() | dict(overrides or {})
        found = {(src, dst): default for src in self.sites for dst in self.sites if src != dst}
        for entry in self.link:
            for pair in entry.pairs():
                found[pair] = found[pair] | entry.changes()
        return found


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
