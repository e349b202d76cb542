"""What training that reduces in every step will cost, before anyone rents it: bytes, time, use of the links, egress.

The times are the native cost model's, which the backend itself decides by, plus what was measured of each operation.
Ranks inside a site hold shards (FSDP, ZeRO, HSDP), so that each exchanges its own part; what a site does inside is part
of the compute time that is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.link_table import Links
from geocomm.core.native import native
from geocomm.core.units import DAY_S, duration_text
from geocomm.group.planning.codec_choice import ReduceTime, Speed
from geocomm.group.planning.regions import Regions

OPERATION_S = 0.001
"""The time of one all-reduce beside the links: queues, threads, sockets. Measured: docs/explanation/planning.md."""
BUCKET_BYTES = 64 << 20
NOMINAL_EFFICIENCY = 0.9
"""Share of a line's rate that tensors get, where the rate is the line's and not `geocomm probe`'s. Chosen: headers take
3.5 % of it, the rest is for losses and others' traffic."""


@dataclass(frozen=True)
class Workload:
    """What is trained."""

    parameters: float
    ranks_per_site: int
    compute_s: float
    """The time of one step without the WAN."""
    element_bytes: int = 4
    """The bytes of an element that is exchanged: 4 for float32 gradients or weight changes."""
    hidden: float = 0.0
    """Part of the compute time under which an exchange may hide."""
    dollars_per_gb: float | None = None


@dataclass(frozen=True)
class Estimate:
    """The estimate for one codec. Bytes are those of messages between sites, without TCP/IP headers."""

    codec: str
    raw_bytes: float
    """Exchanged by each site, uncompressed."""
    wire_bytes: float
    """The same, compressed: what one site contributes."""
    owners: bool
    """Owner-reduces; else broadcast-all."""
    by_region: bool
    """What crosses between two regions crosses once: a sum of each region, or what relays of the region pass on."""
    relays: tuple[tuple[str, str, str], ...]
    """(from, over, to) of sites that meet over a third one."""
    sent_bytes: float
    """Per exchange, by the site that sends most."""
    sent_per_rank_bytes: float
    exchange_s: float
    exposed_s: float
    """The part of the exchange that no computing hides."""
    step_s: float
    compute_share: float
    link_share: float
    """The share of the rate of the busiest link or access line that is used."""
    egress_bytes_per_step: float
    """All sites together."""
    egress_bytes_per_day: float
    dollars_per_day: float | None

    def to_dict(self) -> dict[str, Any]:
        """The estimate as plain values, for JSON."""
        return asdict(self)


def estimate(work: Workload, links: Links, codec: str, speed: Speed) -> Estimate:
    """Raises InvalidArgumentError for a codec or links that cannot be."""
    count = len(links.sites)
    raw = work.parameters * work.element_bytes
    wire = raw / work.element_bytes * bytes_per_element(codec, work.element_bytes)
    operations = math.ceil(raw / work.ranks_per_site / BUCKET_BYTES)
    exchange_s = operations * OPERATION_S
    exchange_s += ReduceTime(links, work.ranks_per_site, work.element_bytes).seconds(raw, codec, speed)
    exposed_s = max(0.0, exchange_s - work.hidden * work.compute_s)
    step_s = work.compute_s + exposed_s
    choice = native().CostModel(count, links.for_native()).choice(wire)
    ways: list[tuple[int, int, int]] = choice["relays"]
    loads = _loads(choice, count)
    relays = tuple((links.sites[src], links.sites[over], links.sites[dst]) for src, over, dst in ways)
    sent = wire * max(sum(row) for row in loads)
    egress = wire * sum(sum(row) for row in loads)
    per_day = egress * DAY_S / step_s
    return Estimate(
        codec=codec,
        raw_bytes=raw,
        wire_bytes=wire,
        owners=bool(choice["shares"]),
        by_region=choice["by_region"],
        relays=relays,
        sent_bytes=sent,
        sent_per_rank_bytes=sent / work.ranks_per_site,
        exchange_s=exchange_s,
        exposed_s=exposed_s,
        step_s=step_s,
        compute_share=work.compute_s / step_s,
        link_share=seconds_per_byte(links, loads) * wire / step_s,
        egress_bytes_per_step=egress,
        egress_bytes_per_day=per_day,
        dollars_per_day=dollars_of(work, links, wire * DAY_S / step_s, loads),
    )


@dataclass(frozen=True)
class RegionChoice:
    """Whether an exchange of every step goes by regions, and what it takes that way and else: seconds, bytes of all
    sites that cross between regions, and their dollars: None where no bytes have a price."""

    by_region: bool
    region_s: float
    region_bytes: float
    region_dollars: float | None
    plain_s: float
    plain_bytes: float
    plain_dollars: float | None

    def __str__(self) -> str:
        def text(seconds: float, way: str, crossing: float, dollars: float | None) -> str:
            price = "" if dollars is None else f", ${dollars:.3g}"
            return f"{duration_text(seconds, '.3g')} {way} ({crossing / 1e9:.3g} GB between regions{price})"

        known = "the links alone" if self.region_dollars is None else "the links and their prices alone"
        return (
            f"{'by regions' if self.by_region else 'not by regions'}: by {known}, an exchange takes "
            f"{text(self.region_s, 'by regions', self.region_bytes, self.region_dollars)}, and "
            f"{text(self.plain_s, 'else', self.plain_bytes, self.plain_dollars)}"
        )


Pattern: TypeAlias = Literal["all_reduce", "reduce_scatter", "all_gather"]
"""Of every step: the first where each site has the whole model, else the others, each of all parameters once."""


def chosen_levels(work: Workload, links: Links, codec: str, pattern: Pattern = "all_reduce") -> RegionChoice | None:
    """What the backend does of the two, in the model. None: the links have no regions. codec: of reductions."""
    regions = Regions(links.sites, links.by_region())
    if not regions.groups:
        return None
    count = len(links.sites)
    wire = work.parameters * bytes_per_element(codec, work.element_bytes)
    if pattern == "all_gather":
        wire = work.parameters * work.element_bytes / count
    model = native().CostModel(count, links.for_native())
    choice = model.choice(wire, pattern)

    def cost(by_region: bool) -> tuple[float, float, float | None]:
        """Of the best way."""
        ways: list[tuple[float, float, float | None]] = []
        for scheme in [choice] if choice["by_region"] == by_region else model.schemes(wire, pattern):
            if scheme["by_region"] == by_region:
                loads = _loads(scheme, count)
                crossing = sum(regions.crossing(loads))
                dollars = dollars_of(replace(work, dollars_per_gb=None), links, wire, loads)
                ways.append((scheme["seconds"], wire * crossing, dollars or None))
        return min(ways, key=lambda way: way[0] * (way[2] or 1.0))

    return RegionChoice(choice["by_region"], *cost(True), *cost(False))


def _loads(scheme: dict[str, Any], sites: int) -> list[list[float]]:
    """Of a way of the native model: what sites send for each byte of a site's data, `[from][to]`."""
    return [scheme["loads"][site * sites : (site + 1) * sites] for site in range(sites)]


def dollars_of(work: Workload, links: Links, count: float, loads: Sequence[Sequence[float]]) -> float | None:
    """Of `count` times what sites send, `[from][to]` in bytes: at the price of the workload, which all bytes have, else
    at those of the links, which only those between regions have. None: there is no price."""
    if work.dollars_per_gb is not None:
        return count / 1e9 * sum(map(sum, loads)) * work.dollars_per_gb
    if links.dollars_per_gb is None:
        return None
    crossing = Regions(links.sites, links.by_region()).crossing(loads)
    return count / 1e9 * sum(load * price for load, price in zip(crossing, links.dollars_per_gb, strict=True))


def bytes_per_element(codec: str, element_bytes: int) -> float:
    """Expected of normal numbers, compressed. element_bytes: 4 (float32) or 2 (bfloat16)."""
    return codec_spec(codec).expected_bytes_per_element("float32" if element_bytes == 4 else "bfloat16")


def seconds_per_byte(links: Links, loads: Sequence[Sequence[float]]) -> float:
    """Seconds that the busiest link, or a site's access line, carries data, per byte of a site."""
    most = 0.0
    for site, row in enumerate(loads):
        for dst, load in enumerate(row):
            if site != dst:
                most = max(most, 8 * load / links.rate_bps[site][dst])
        for limits, carried in ((links.up_bps, sum(row)), (links.down_bps, sum(other[site] for other in loads))):
            if limits is not None:
                most = max(most, 8 * carried / limits[site])
    return most


def scaled(links: Links, efficiency: float) -> Links:
    """Links of which tensors get a part: nominal rates to payload rates."""
    rates = {
        "rate_bps": tuple(tuple(rate * efficiency for rate in row) for row in links.rate_bps),
        "up_bps": links.up_bps and tuple(rate * efficiency for rate in links.up_bps),
        "down_bps": links.down_bps and tuple(rate * efficiency for rate in links.down_bps),
    }
    return Links(**links.model_dump() | rates)
