"""How long sites take to read a data set once, and what that costs: for `geocomm plan --data`. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from geocomm.core.bad_input import BadInput
from geocomm.core.units import DAY_S, count_text
from geocomm.data.catalog import Rules, Shard
from geocomm.data.deals import Far, ShardClass, cheapest, copies, least_time, readers_of

_ALL_SUBSETS = 6
"""All subsets of so many sites are compared; of more sites only those that leave one out."""
_ADDS_NOTHING = 1.01
"""A site, or a line, that changes the days by less does not count. Chosen: speeds are known less exactly."""


@dataclass(frozen=True)
class PassEstimate:
    """One pass of some of the sites."""

    sites: tuple[str, ...]
    days: float
    data_dollars: float
    """For traffic out of stores, by the prices in the catalog."""
    moved_tb: float
    """Read from stores that are not near, in a region of their own price."""
    line_days: float
    """The part of the days by which lines from afar hold the sites up."""
    round_tb: float
    """What the sites send each other meanwhile; 0 where that was not asked for."""
    round_dollars: float | None
    gpu_dollars: float | None
    unread_tokens: int
    """That none of them may read."""
    up_to: tuple[str, ...]
    """The sites that the time is up to: others have to wait for them."""
    alone_tokens: int
    """What they alone may read."""

    @property
    def dollars(self) -> float:
        """The dollars for data, rounds and GPUs."""
        return self.data_dollars + (self.round_dollars or 0.0) + (self.gpu_dollars or 0.0)


@dataclass(frozen=True)
class Machines:
    """The machines of all sites."""

    gpus: Mapping[str, int]
    tokens_per_second: float
    """The speed of one GPU."""
    prices: Mapping[str, float]
    """Dollars of a GPU for an hour; empty: not asked for."""
    far_bytes_per_second: Mapping[str, float] = field(default_factory=dict[str, float])
    """That a site reads from afar at most; of others no limit is known."""


@dataclass(frozen=True)
class TrainingTraffic:
    """What sites send each other while they train."""

    bytes_per_second: float
    """All together."""
    slowdown: float
    """Times longer that a step takes than its computing."""
    dollars_per_gb: float | None


NO_EXCHANGE = TrainingTraffic(0.0, 1.0, None)


def estimates(
    rules: Rules,
    shards: Sequence[Shard],
    width: int,
    machines: Machines,
    exchange: Callable[[tuple[str, ...]], TrainingTraffic] = lambda sites: NO_EXCHANGE,
) -> list[PassEstimate]:
    """For subsets of the sites: all of them first, then by time. width: bytes of an id. exchange: by sites. Raises
    BadInput for a site that the rules do not have, and for labels that no site may read."""
    sites = sorted(machines.gpus)
    left: dict[ShardClass, float] = {}
    for rows in copies(shards).values():
        key = ShardClass.of([shards[row] for row in rows])
        left[key] = left.get(key, 0.0) + shards[rows[0]].tokens
    for site in sites:
        if rules.sites:
            rules.require_site(site)
    if lacking := sorted(set(machines.prices).symmetric_difference(sites)) if machines.prices else []:
        raise BadInput(f"--gpu-price and --gpus must name the same sites, and {lacking[0]} is in one of them alone")
    for key in left:
        rules.require_labels(key.labels)
    counts = range(len(sites), 0, -1) if len(sites) <= _ALL_SUBSETS else (len(sites), len(sites) - 1)
    choices = [some for count in counts for some in combinations(sites, count)]
    found = [_estimate(rules, left, width, machines, some, exchange(some)) for some in choices]
    return [found[0], *sorted(found[1:], key=lambda one: (one.unread_tokens > 0, one.days, one.dollars))]


def _estimate(
    rules: Rules,
    left: Mapping[ShardClass, float],
    width: int,
    machines: Machines,
    sites: tuple[str, ...],
    exchange: TrainingTraffic,
) -> PassEstimate:
    speeds = {site: machines.gpus[site] * machines.tokens_per_second / exchange.slowdown for site in sites}
    readers = readers_of(left, rules, speeds)
    far = Far(rules, {site: rate / width for site, rate in machines.far_bytes_per_second.items()})
    seconds, up_to = least_time(left, readers, speeds, far)
    plan = cheapest(left, readers, speeds, rules, far)
    gb = {key: tokens * width / 1e9 for key, tokens in plan.items()}
    paid = {(key, site): size for (key, site), size in gb.items() if key.price(rules, site) > 0}
    sent = exchange.bytes_per_second * seconds
    hours = sum(machines.gpus[site] * machines.prices.get(site, 0.0) for site in sites) * seconds / 3600
    return PassEstimate(
        sites=sites,
        days=seconds / DAY_S,
        data_dollars=sum(size * key.price(rules, site) for (key, site), size in gb.items()),
        moved_tb=sum(paid.values()) / 1e3,
        line_days=(seconds - least_time(left, readers, speeds)[0]) / DAY_S,
        round_tb=sent / 1e12,
        round_dollars=None if exchange.dollars_per_gb is None else sent / 1e9 * exchange.dollars_per_gb,
        gpu_dollars=hours if machines.prices else None,
        unread_tokens=round(sum(tokens for key, tokens in left.items() if not readers[key])),
        up_to=tuple(sorted(up_to)),
        alone_tokens=round(sum(tokens for key, tokens in left.items() if readers[key] and readers[key] <= up_to)),
    )


def advice(found: Sequence[PassEstimate]) -> str:
    """What to take from the estimates, in one sentence. found: of `estimates`."""
    whole = found[0]
    complete = [one for one in found if not one.unread_tokens]
    if not complete:
        return f"No choice of these sites may read all: {count_text(whole.unread_tokens, 'token')} are left."
    if whole.line_days > (_ADDS_NOTHING - 1) * whole.days:
        into = " and ".join(whole.up_to)
        return f"The lines into {into} hold all sites up: they take {whole.line_days:,.3g} of {whole.days:,.3g} days."
    fastest = min(complete, key=lambda one: (one.days, len(one.sites)))
    cheapest_one = min(complete, key=lambda one: (one.dollars, one.days))
    for one in sorted(complete, key=lambda one: len(one.sites)):
        if one.days <= _ADDS_NOTHING * fastest.days and len(one.sites) < len(whole.sites):
            idle = [site for site in whole.sites if site not in one.sites]
            alone = f"only {' and '.join(whole.up_to)} may read {whole.alone_tokens / 1e9:,.3g} G tokens"
            return f"{' and '.join(idle)} {'adds' if len(idle) == 1 else 'add'} nothing: {alone}."
    if whole.gpu_dollars is not None and cheapest_one is not fastest:
        return (
            f"{', '.join(fastest.sites)} are the fastest; {', '.join(cheapest_one.sites)} cost "
            f"{fastest.dollars - cheapest_one.dollars:,.0f} dollars less, and {cheapest_one.days - fastest.days:.1f} "
            "days more."
        )
    return f"Take all: {', '.join(fastest.sites)}."
