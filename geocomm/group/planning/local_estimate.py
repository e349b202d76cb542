"""Local steps over given links: how often each fragment of the model may cross, and what that costs.

The numbers of `geocomm.local_steps` (every, fragments, overlap) follow from how long a round takes. A round is planned
as `GroupRounds` carries it out: what each site offers, then each site's frame to every other site, or to the fragment's
aggregator and from there the average, and coding by one thread of the rank that owns the fragment. Between regions all
of it goes by heads (`Regions`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.errors import InvalidArgumentError
from geocomm.core.link_table import Links
from geocomm.core.units import DAY_S, duration_text
from geocomm.group.planning.codec_choice import Speed
from geocomm.group.planning.regions import Regions
from geocomm.group.planning.run_estimate import OPERATION_S, Workload, bytes_per_element, dollars_of, seconds_per_byte

LEAST_FRAGMENT_BYTES = 4 << 20
"""The least bytes of a fragment in float32: smaller ones spend their time in round trips."""
AUTO_FRAGMENTS = 24
"""Chosen: as many as Decoupled DiLoCo has (arXiv 2604.21428)."""
LEAST_EVERY, MOST_EVERY = 30, 300
"""Quality is known from 30 on; beyond 300 nobody has measured it (docs/explanation/local-steps.md)."""
LINE_SHARE = 0.7
"""The share of the time between two rounds of a fragment that the rounds of all fragments may take. Chosen: lines are
slower at times, and a round that is late holds back the next one."""
_LEAST_ROUND_TRIPS = 4.0
"""A fragment is so large that its round takes at least this time: then latency is half of it or less."""
_EXCHANGES = {"all": 2, "aggregator": 3}
"""The exchanges of a round: what each site offers, then the frames, then the average."""
_DELTA_BYTES = 4
WORTH_TIMES = 0.9
"""`reduce="auto"` takes an aggregator where its rounds take less than this part of the time; where bytes have a price,
of the time times the dollars, so that a part of either counts alike. Chosen."""
Reduce = Literal["all", "aggregator"]
"""As in `LocalSettings`."""
_OVERLAP_MARGIN = 1.5
"""Times the estimate of a round. Chosen, as room for rounds that take longer."""


@dataclass(frozen=True)
class LocalEstimate:
    """The estimate for one codec. Bytes are those of messages between sites, without TCP/IP headers."""

    codec: str
    reduce: Reduce
    every: int
    """Optimizer steps between two rounds of a fragment (H)."""
    fragments: int
    overlap: int
    """Optimizer steps in which a round ends, with some room."""
    round_s: float
    """The seconds of a round of one fragment."""
    fits: bool
    """Whether the rounds fit under the steps; else they begin later than every `every` steps, and steps still do not
    wait."""
    step_s: float
    link_share: float
    """The share of the rate of the busiest link or access line that is used."""
    sent_bytes_per_step: float
    """Mean over all steps, by each site."""
    fewer_bytes: float
    """Times fewer than one site sends in float32 in every step."""
    egress_bytes_per_day: float
    dollars_per_day: float | None
    between_regions_bytes_per_day: float | None
    """Of all sites; None: there are no regions."""

    def to_dict(self) -> dict[str, Any]:
        """The estimate as plain values, for JSON."""
        return asdict(self)


def local_estimate(
    work: Workload, links: Links, codec: str, speed: Speed, *, every: int | None = None, reduce: Reduce = "all"
) -> LocalEstimate:
    """every: None to choose the smallest that fits. Raises InvalidArgumentError for a codec or links that cannot be."""
    if every is not None and every < 1:
        raise InvalidArgumentError(f"--every: {every} is below 1")
    count = len(links.sites)
    raw_bytes = work.parameters * _DELTA_BYTES
    wire_bytes = work.parameters * bytes_per_element(codec, _DELTA_BYTES)
    regions = Regions(links.sites, links.by_region())
    loads = round_loads(regions, reduce)
    sent_bytes = wire_bytes * sum(map(sum, loads)) / count  # by each site, for a delta of the whole model
    rtt_s = max(max(row) for row in links.rtt_s)
    near_s = max((rtt_s for group in regions.groups for rtt_s in _rtts_in(links, group)), default=0.0)
    link_s = wire_bytes * seconds_per_byte(links, loads)  # of the busiest link or line, for the whole model
    coding_s = raw_bytes * (speed.encode + count * speed.decode)
    if reduce == "aggregator":
        # It has one fragment in `count`, and heads of other regions have as many.
        averages = sum(len(regions.adders(site)) for site in links.sites) / count
        coding_s = raw_bytes * (speed.encode * (1 + averages / count) + (2 + (averages - 1) / count) * speed.decode)

    def seconds(fragments: int) -> float:
        """Of one round."""
        return (link_s + coding_s) / fragments + _EXCHANGES[reduce] * (rtt_s + near_s + OPERATION_S)

    most = max(1, min(AUTO_FRAGMENTS, int(raw_bytes // LEAST_FRAGMENT_BYTES)))
    large_enough = [one for one in range(1, most + 1) if seconds(one) >= _LEAST_ROUND_TRIPS * rtt_s]
    fragments = max(large_enough, default=1)
    round_s = seconds(fragments)
    least = least_every(fragments * round_s, work.compute_s)
    if every is None:
        every = min(MOST_EVERY, max(LEAST_EVERY, least))
    cycle_s = max(every * work.compute_s, fragments * round_s)
    per_step = sent_bytes * work.compute_s / cycle_s
    egress = per_step * count * DAY_S / work.compute_s
    between = wire_bytes * sum(regions.crossing(loads)) * DAY_S / cycle_s if regions.groups else None
    return LocalEstimate(
        codec=codec,
        reduce=reduce,
        every=every,
        fragments=fragments,
        overlap=min(every, max(1, math.ceil(_OVERLAP_MARGIN * round_s / work.compute_s))),
        round_s=round_s,
        fits=least <= every,
        step_s=work.compute_s,
        link_share=link_s / cycle_s,
        sent_bytes_per_step=per_step,
        fewer_bytes=raw_bytes * (count - 1) / per_step,
        egress_bytes_per_day=egress,
        dollars_per_day=dollars_of(work, links, wire_bytes * DAY_S / cycle_s, loads),
        between_regions_bytes_per_day=between,
    )


def round_loads(regions: Regions, reduce: Reduce) -> list[list[float]]:
    """The frames of a delta of the whole model that sites send, `[from][to]`, where they take turns as aggregators."""
    sites, over = regions.sites, {(far, site): head for far, head, site in regions.relays()}
    place = {site: number for number, site in enumerate(sites)}
    loads = [[0.0] * len(sites) for _ in sites]
    part = 1.0 if reduce == "all" else 1 / len(sites)

    def send(src: str, dst: str) -> None:
        loads[place[src]][place[dst]] += part * (src != dst)

    for far in sites:
        for site in sites:  # its delta, or in its turn the average
            send(over.get((far, site), far) if site != far else far, site)
            if reduce == "aggregator":
                send(site, regions.adder(site, far))
        for adder in regions.adders(far) if reduce == "aggregator" else ():
            send(adder, far)
    return loads


def between_regions_alone(links: Links, reduce: Reduce) -> float:
    """How many times more crosses between the regions of the links where rounds know of none."""
    regions, alone = Regions(links.sites, links.by_region()), Regions(links.sites)
    without, with_them = (sum(regions.crossing(round_loads(rounds, reduce))) for rounds in (alone, regions))
    return without / with_them


def _rtts_in(links: Links, group: Sequence[str]) -> Iterator[float]:
    places = [links.sites.index(site) for site in group]
    return (links.rtt_s[src][dst] for src in places for dst in places)


@dataclass(frozen=True)
class ReduceChoice:
    """Which way to reduce local steps, the seconds that the rounds of all fragments take each way, and their dollars:
    None where no bytes have a price."""

    reduce: Reduce
    all_s: float
    aggregator_s: float
    all_dollars: float | None = None
    aggregator_dollars: float | None = None

    def __str__(self) -> str:
        def cost(seconds: float, dollars: float | None) -> str:
            return duration_text(seconds, ".3g") + ("" if dollars is None else f" and ${dollars:.3g}")

        known = "the links alone" if self.all_dollars is None else "the links and their prices alone"
        return (
            f"{self.reduce}: by {known}, the rounds of all fragments take {cost(self.all_s, self.all_dollars)} with "
            f"all, and {cost(self.aggregator_s, self.aggregator_dollars)} with an aggregator"
        )


def chosen_reduce(parameters: float, links: Links, codec: str) -> ReduceChoice:
    """What `reduce="auto"` is. By the links, with their prices, alone: they are the same for all sites, and what coding
    takes is not."""
    work = Workload(parameters, 1, 1.0)
    wire_bytes = parameters * bytes_per_element(codec, _DELTA_BYTES)
    regions = Regions(links.sites, links.by_region())

    def cost(reduce: Reduce) -> tuple[float, float | None]:
        row = local_estimate(work, links, codec, Speed(0.0, 0.0), reduce=reduce)
        return row.fragments * row.round_s, dollars_of(work, links, wire_bytes, round_loads(regions, reduce))

    (all_s, all_dollars), (aggregator_s, aggregator_dollars) = cost("all"), cost("aggregator")
    part = aggregator_s / all_s
    if all_dollars and aggregator_dollars is not None:
        part *= aggregator_dollars / all_dollars
    # Its average is compressed once more, so it has to be worth that.
    is_worth = part < WORTH_TIMES and not codec_spec(codec).needs_feedback
    return ReduceChoice(
        "aggregator" if is_worth else "all", all_s, aggregator_s, all_dollars or None, aggregator_dollars or None
    )


def least_every(rounds_s: float, step_s: float) -> int:
    """The smallest `every` with which the rounds of all fragments, `rounds_s` in all, fit under steps of `step_s`."""
    return math.ceil(rounds_s / (LINE_SHARE * step_s))
