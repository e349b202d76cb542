"""What the links between sites can do: a table of rates and round-trip times that all ranks share.

`geocomm probe` measures one and writes it as JSON; GEOCOMM_LINKS names that file, or a TOML file as `geocomm wan
--matrix` takes it. Without one, every link counts as `ASSUMED_RATE_BPS` and `ASSUMED_RTT_S`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, Self, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from geocomm.core.bad_input import BadInput, first_problem, problem_text
from geocomm.core.options import from_environment
from geocomm.core.site import check_site_name
from geocomm.core.units import named_text

FORMAT = 1
ASSUMED_RATE_BPS, ASSUMED_RTT_S = 1e9, 0.1
"""A link that nobody has told of. Chosen: a gigabit, and the round trip across an ocean."""
LEAST_BPS = 8.0
MOST_BPS = 1e15
"""Also what stands for a site without a limit, where others have one."""
REGION_RTT_S = 0.01
"""Sites with shorter round trips may share a region. Chosen: it holds data centres of one metropolitan area."""

SiteName = Annotated[str, AfterValidator(check_site_name)]
Number = Annotated[float, BeforeValidator(lambda value: 0.0 if value is None else value)]
Table = tuple[tuple[Number, ...], ...]
"""A number for each ordered pair of sites, `[from][to]`; the diagonal is 0."""
Rates = tuple[Number, ...]
Groups = tuple[tuple[str, ...], ...]
"""Names of sites in groups: each site is in one."""
NativeLinks = tuple[list[float], list[float], list[float], list[float], list[int], list[float]]
"""As `Links.for_native()` returns it."""


class Links(BaseModel):
    """A table of the links between sites, equal on all ranks; `geocomm.refresh_links()` returns one.

    `rate_bps`, `rtt_s` and `loss` are square tables `[from][to]`, with a row and a column for each site in the order of
    `sites`; the diagonal is 0. `up_bps` and `down_bps` have a number for each site.

    Args:
        values: The fields, in their order.
        named: The fields by name.

    Raises:
        InvalidArgumentError: A table is not square, or a number is out of range.

    Example:
        The rate from site "paris" to site "oslo":

            rate = links.rate_bps[links.sites.index("paris")][links.sites.index("oslo")]
    """

    model_config = ConfigDict(frozen=True)

    sites: tuple[SiteName, ...]
    """Names of the sites, each once."""
    rate_bps: Table
    """Payload bits per second, all connections of all ranks together; 8 to 1e15."""
    rtt_s: Table
    """Round-trip times in seconds, 0 to 120."""
    loss: Table | None = None
    """Share of the TCP segments that had to be sent again, 0 to 1; only people read it, no decision depends on it."""
    up_bps: Rates | None = None
    """The most bits per second that a site sends to all others together; None: no limit is known."""
    down_bps: Rates | None = None
    """The most bits per second that a site receives from all others together; None: no limit is known."""
    regions: tuple[str, ...] | None = None
    """The region of each site; empty: a region of its own. Between regions a delta of local steps crosses once, and
    what reductions and all-gathers send where that saves time or dollars. None: there are no regions."""
    dollars_per_gb: Rates | None = None
    """What a site pays for a GB that it sends to another region, 0 or more; None: nobody has told any price."""
    source: str = "assumed"
    """Where the numbers come from: "assumed", "file", "measured"."""

    def __init__(self, *values: Any, **named: Any) -> None:
        """The fields, in their order or by name."""
        try:
            super().__init__(**dict(zip(type(self).model_fields, values, strict=False)), **named)
        except ValidationError as error:
            problem = first_problem(error)
            text = problem_text(problem)
            is_number = problem["type"] != "missing" and problem["loc"] and problem["loc"][0] not in ("sites", "source")
            _refuse(f"{text}; expected tables of numbers" if is_number else text)

    @model_validator(mode="after")
    def _check(self) -> Self:
        count = len(self.sites)
        if count < 1 or len(set(self.sites)) != count:
            raise ValueError(f"sites: {', '.join(self.sites) or 'none'}; expected names, each once")
        for name, table, low, high in (
            ("rate_bps", self.rate_bps, LEAST_BPS, MOST_BPS),
            ("rtt_s", self.rtt_s, 0.0, 120.0),
            ("loss", self.loss, 0.0, 1.0),
        ):
            if table is not None:
                self._check_table(name, table, low, high)
        for name, rates in (("up_bps", self.up_bps), ("down_bps", self.down_bps)):
            if rates is not None and (len(rates) != count or not all(LEAST_BPS <= rate <= MOST_BPS for rate in rates)):
                raise ValueError(f"{name}: expected {count} rates of 8 to 1e15 bit/s, got {list(rates)}")
        if self.regions is not None and len(self.regions) != count:
            raise ValueError(f"regions: expected {count} names, one for each site, got {list(self.regions)}")
        prices = self.dollars_per_gb
        if prices is not None and (len(prices) != count or not all(0 <= price < math.inf for price in prices)):
            raise ValueError(f"dollars_per_gb: expected {count} prices, 0 or more, got {list(prices)}")
        return self

    def _check_table(self, name: str, table: Table, low: float, high: float) -> None:
        if len(table) != len(self.sites) or any(len(row) != len(self.sites) for row in table):
            raise ValueError(f"{name}: expected {len(self.sites)} rows of {len(self.sites)} numbers, one for each site")
        for src, row in zip(self.sites, table, strict=True):
            for dst, value in zip(self.sites, row, strict=True):
                if src != dst and not low <= value <= high:
                    raise ValueError(f"{name} from {src} to {dst} is {value:g}; expected {low:g} to {high:g}")

    @classmethod
    def uniform(
        cls, sites: Sequence[str], rate_bps: float = ASSUMED_RATE_BPS, rtt_s: float = ASSUMED_RTT_S, **rest: Any
    ) -> Links:
        """A table whose links are all alike. The defaults are what geocomm assumes before it has measured.

        Args:
            sites: Names of the sites.
            rate_bps: Payload bits per second of every link.
            rtt_s: Round-trip time of every link in seconds.
            rest: Other fields by name.

        Returns:
            The table.

        Raises:
            InvalidArgumentError: A name or a number is invalid.
        """
        count = len(sites)
        rates = table_of(count, lambda _src, _dst: rate_bps)
        return cls(tuple(sites), rates, table_of(count, lambda _src, _dst: rtt_s), **rest)

    @classmethod
    def from_file(cls, path: str | Path) -> Links:
        """Read a table from a file.

        Args:
            path: JSON of `geocomm probe --out`, or TOML as `geocomm wan run --matrix` takes it.

        Returns:
            The table, with `source` "file".

        Raises:
            InvalidArgumentError: The file cannot be read, or a value in it is invalid.
        """
        if Path(path).suffix == ".toml":
            return _from_matrix(path)
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            _refuse(f"cannot read {path}: {error.strerror}")
        except ValueError as error:  # JSON, UTF-8
            _refuse(f"{path}: {error}")
        return cls.from_dict(document, str(path), "file")

    @classmethod
    def from_dict(cls, document: Any, where: str, source: str | None = None) -> Links:
        """Make a table of what `to_dict` returned.

        Args:
            document: The dict, for example from JSON.
            where: Name of its origin, for errors.
            source: Value of the field `source`; None: the dict's own.

        Returns:
            The table.

        Raises:
            InvalidArgumentError: It is no such dict, or a value in it is invalid.
        """
        fields = cast(dict[str, Any], document) if isinstance(document, dict) else {}
        if fields.get("geocomm_links") != FORMAT:
            _refuse(
                f'{where}: expected a JSON object with "geocomm_links": {FORMAT}, as `geocomm probe --out` writes it'
            )
        given = {name: fields[name] for name in cls.model_fields if name in fields}
        given["source"] = source or str(fields.get("source", "file"))
        try:
            return cls(**given)
        except ValueError as error:
            _refuse(f"{where}: {str(error).removeprefix('links: ')}")

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, for JSON; `from_dict` reads them."""
        return {"geocomm_links": FORMAT, **self.model_dump()}

    def digest(self) -> str:
        """A short name of the table: equal tables have equal names, whatever their source."""
        added = ("regions", "dollars_per_gb")  # what earlier versions wrote has none
        said = {name: value for name, value in self.to_dict().items() if name not in added or value is not None}
        numbers = {name: value for name, value in said.items() if name not in ("source", "loss")}
        return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:16]

    def select(self, sites: Sequence[str]) -> Links:
        """The table of some of the sites.

        Args:
            sites: Names of sites of this table.

        Returns:
            A table of these sites, in this order.

        Raises:
            InvalidArgumentError: The table has no such site.
        """
        missing = [site for site in sites if site not in self.sites]
        if missing:
            _refuse(f"no links of {named_text('site', missing)}; the table has {', '.join(self.sites)}")
        rows = [self.sites.index(site) for site in sites]

        def table(values: Table) -> Table:
            return tuple(tuple(values[src][dst] for dst in rows) for src in rows)

        return Links(
            tuple(sites),
            table(self.rate_bps),
            table(self.rtt_s),
            None if self.loss is None else table(self.loss),
            None if self.up_bps is None else tuple(self.up_bps[row] for row in rows),
            None if self.down_bps is None else tuple(self.down_bps[row] for row in rows),
            None if self.regions is None else tuple(self.regions[row] for row in rows),
            None if self.dollars_per_gb is None else tuple(self.dollars_per_gb[row] for row in rows),
            self.source,
        )

    def relays(self) -> list[tuple[str, str, str]]:
        """The pairs of sites whose messages go over a third site, because that is faster.

        Returns:
            The names (from, over, to) of each.
        """
        from geocomm.core.native import native

        found = native().choose_relays(len(self.sites), self.for_native())
        return [(self.sites[src], self.sites[over], self.sites[dst]) for src, over, dst in found]

    def by_region(self) -> Groups:
        """The sites by region, in their order; nothing where not one region has several sites, or there is but one."""
        groups = self._groups()
        return groups if 1 < len(groups) < len(self.sites) else ()

    def named_regions(self) -> Groups:
        """The regions of several sites, also where there is but one: sites that the table does not name may come."""
        return tuple(group for group in self._groups() if len(group) > 1)

    def _groups(self) -> Groups:
        groups: dict[tuple[str, int], list[str]] = {}
        for number, (site, region) in enumerate(zip(self.sites, self.regions or (), strict=False)):
            groups.setdefault((region, -1 if region else number), []).append(site)
        return tuple(map(tuple, groups.values()))

    def with_near_regions(self) -> Links:
        """The same table, with the regions that its round trips show: chains of sites within `REGION_RTT_S`.

        Returns:
            A table whose regions are named after their first site; without regions where all or none are near.
        """
        first = list(range(len(self.sites)))
        for src in range(len(self.sites)):
            for dst in range(src):
                if max(self.rtt_s[src][dst], self.rtt_s[dst][src]) <= REGION_RTT_S:
                    joined = {first[src], first[dst]}
                    first = [min(joined) if one in joined else one for one in first]
        named = tuple(f"near-{self.sites[one]}" if first.count(one) > 1 else "" for one in first)
        found = self.model_copy(update={"regions": named})
        return found if found.by_region() else self.model_copy(update={"regions": None})

    def for_native(self) -> NativeLinks:
        """The numbers as the native module takes them.

        Returns:
            Bytes per second and one-way seconds of each pair, row by row. Of each site, or empty: bytes per second up
            and down, the number of its region, dollars for a byte to another one.
        """
        rates = [value / 8 or 1.0 for row in self.rate_bps for value in row]
        delays = [value / 2 for row in self.rtt_s for value in row]
        up, down = ([bps / 8 for bps in limits or ()] for limits in (self.up_bps, self.down_bps))
        number = {site: region for region, group in enumerate(self.by_region()) for site in group}
        prices = [dollars / 1e9 for dollars in self.dollars_per_gb or ()]
        return rates, delays, up, down, [number[site] for site in self.sites if number], prices


def table_of(sites: int, value: Callable[[int, int], float]) -> Table:
    """A table with value(from, to) off the diagonal."""
    return tuple(tuple(0.0 if src == dst else float(value(src, dst)) for dst in range(sites)) for src in range(sites))


def own_links() -> Links | None:
    """The table that GEOCOMM_LINKS names; None: it names none. Raises BadInput."""
    path = from_environment("links")
    try:
        return None if path is None else Links.from_file(path)
    except ValueError as error:
        raise BadInput(f"GEOCOMM_LINKS: {error}") from None


def _from_matrix(path: str | Path) -> Links:
    from geocomm.core.link_matrix import DEFAULT_DELAY_S, DEFAULT_RATE_BPS, LinkMatrixError, Matrix

    try:
        matrix = Matrix.read(path)
    except LinkMatrixError as error:  # it names the file
        _refuse(str(error).removeprefix("matrix: "))
    links = matrix.links()

    def number(name: str, src: int, dst: int, unsaid: float) -> float:
        return links[matrix.sites[src], matrix.sites[dst]].get(name, unsaid)

    def delay_s(src: int, dst: int) -> float:
        return number("delay_s", src, dst, DEFAULT_DELAY_S)

    count = len(matrix.sites)
    try:
        return Links(
            tuple(matrix.sites),
            table_of(count, lambda src, dst: number("rate_bps", src, dst, DEFAULT_RATE_BPS)),
            table_of(count, lambda src, dst: delay_s(src, dst) + delay_s(dst, src)),
            table_of(count, lambda src, dst: number("loss", src, dst, 0.0)),
            regions=matrix.region_of_sites(),
            dollars_per_gb=matrix.price_of_sites(),
            source="file",
        )
    except ValueError as error:
        _refuse(f"{path}: {str(error).removeprefix('links: ')}")


def _refuse(message: str) -> NoReturn:
    from geocomm.core.errors import InvalidArgumentError  # imports torch; tables themselves do not need it

    raise InvalidArgumentError(f"links: {message.removeprefix('links: ')}")
