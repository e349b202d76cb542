"""How long sites take to read a data set once, and what that costs: for `geocomm plan --data`. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from geocomm.core.bad_input import BadInput
from geocomm.core.units import count_text
from geocomm.data.catalog import Rules, Shard
from geocomm.data.deals import ShardClass, cheapest, copies, least_time, readers_of

_ALL_SUBSETS = 6
"""Of more sites, those that leave one out."""
_ADDS_NOTHING = 1.01


@dataclass(frozen=True)
class PassEstimate:
    """One pass of some of the sites."""

    sites: tuple[str, ...]
    days: float
    data_dollars: float
    """For traffic out of stores, by the prices in the catalog."""
    moved_tb: float
    """Read from stores that are not near, in a region of their own price."""
    gpu_dollars: float | None
    unread_tokens: int
    """That none of them may read."""
    up_to: tuple[str, ...]
    """The sites that the time is up to: others have to wait for them."""
    alone_tokens: int
    """What they alone may read."""

    @property
    def dollars(self) -> float:
        """For data and GPUs."""
        return self.data_dollars + (self.gpu_dollars or 0.0)


@dataclass(frozen=True)
class Machines:
    """Of all sites."""

    gpus: Mapping[str, int]
    tokens_per_second: float
    """Of one GPU."""
    prices: Mapping[str, float]
    """Dollars of a GPU for an hour; empty: not asked for."""


def estimates(rules: Rules, shards: Sequence[Shard], width: int, machines: Machines) -> list[PassEstimate]:
    """For subsets of the sites: all of them first, then by time. width: bytes of an id. Raises BadInput for a site that
    the rules do not have, and for labels that no site may read."""
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
    found = [_estimate(rules, left, width, machines, some) for count in counts for some in combinations(sites, count)]
    return [found[0], *sorted(found[1:], key=lambda one: (one.unread_tokens > 0, one.days, one.dollars))]


def _estimate(
    rules: Rules, left: Mapping[ShardClass, float], width: int, machines: Machines, sites: tuple[str, ...]
) -> PassEstimate:
    speeds = {site: machines.gpus[site] * machines.tokens_per_second for site in sites}
    readers = readers_of(left, rules, speeds)
    seconds, up_to = least_time(left, readers, speeds)
    plan = cheapest(left, readers, speeds, rules)
    gb = {key: tokens * width / 1e9 for key, tokens in plan.items()}
    paid = {(key, site): size for (key, site), size in gb.items() if key.price(rules, site) > 0}
    hours = sum(machines.gpus[site] * machines.prices.get(site, 0.0) for site in sites) * seconds / 3600
    return PassEstimate(
        sites,
        seconds / 86400,
        sum(size * key.price(rules, site) for (key, site), size in gb.items()),
        sum(paid.values()) / 1e3,
        hours if machines.prices else None,
        round(sum(tokens for key, tokens in left.items() if not readers[key])),
        tuple(sorted(up_to)),
        round(sum(tokens for key, tokens in left.items() if readers[key] and readers[key] <= up_to)),
    )


def advice(found: Sequence[PassEstimate]) -> str:
    """What to take from the estimates, in one sentence. found: of `estimates`."""
    whole = found[0]
    complete = [one for one in found if not one.unread_tokens]
    if not complete:
        return f"No choice of these sites may read all: {count_text(whole.unread_tokens, 'token')} are left."
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
