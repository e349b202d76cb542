"""Which shards a site reads next: the rule of an elastic run's leader. Pure; imports no torch.

Shards that cost each site the same and have the same readers are a class: a handful for any number of shards. A plan
says how many tokens of each class each site shall read: all of them in the least time, and of such plans the one of
least dollars. Each deal's class is drawn by the plan's shares, so the mix of classes is the same from the begin of a
pass to its end. A site that would pay for what others read in time for less begins its next pass before this one is
over. Inside a class the weighted rendezvous hash of shard and site decides (Thaler and Ravishankar 1998;
weights as in Schindelhauer and Schomaker 2005): in the next pass, and after sites have come or gone, a site gets what
it has cached.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geocomm.data.catalog import Rules, Shard

SHARDS_OF_DEAL = 8
DEALS_OF_A_PASS = 4
"""A site gets at least so many: of a data set that is too small for them, a deal has fewer than SHARDS_OF_DEAL."""
_SLACK = 1.02
"""A plan may take so many times the least time, if that costs less."""
_DEALS_OF_PLAN = 100
_MOST_UNIONS = 4096
"""Sets of sites that are looked at for the least time: labels in a catalog may ask for more."""
_UNITS = 1_000_000
"""What is left is cut into so many for the plan, whose numbers are integers."""


@dataclass(frozen=True)
class ShardClass:
    """Shards that lie in the same stores and have the same labels."""

    stores: tuple[str, ...]
    labels: tuple[str, ...]

    @classmethod
    def of(cls, copies: Sequence[Shard]) -> ShardClass:
        """The class of a shard that lies in these places."""
        labels = {label for one in copies for label in one.labels}
        return cls(tuple(sorted({one.store for one in copies})), tuple(sorted(labels)))

    def is_near(self, rules: Rules, site: str) -> bool:
        """Whether one of the stores is near a site, or in its region."""
        stores, region = [rules.stores[name] for name in self.stores], rules.sites.get(site)
        return any(site in one.near or (region and region == one.region) for one in stores)

    def price(self, rules: Rules, site: str) -> float:
        """Dollars per GB for a site: none from near."""
        return 0.0 if self.is_near(rules, site) else min(rules.stores[name].price for name in self.stores)


@dataclass(frozen=True)
class Far:
    """How fast sites can read from stores that are not near."""

    rules: Rules
    speeds: Mapping[str, float]
    """Tokens a second, by site; of others no limit is known."""

    def limits(self, key: ShardClass, site: str) -> bool:
        """Whether the site reads the class no faster than that."""
        return site in self.speeds and not key.is_near(self.rules, site)


def least_time(
    left: Mapping[ShardClass, float],
    readers: Mapping[ShardClass, frozenset[str]],
    speeds: Mapping[str, float],
    far: Far | None = None,
) -> tuple[float, frozenset[str]]:
    """Seconds in which sites with these speeds (tokens a second) can read what is left (tokens), at the least, and the
    sites that it is up to: what they alone may read takes them so long. That is Hall's condition for work that can be
    divided; unions of the ways that classes are read are enough to look at. What nobody may read is left out."""
    of: dict[ShardClass, frozenset[tuple[str, bool]]] = {}
    """By class: (site, from near). A site that reads from near could also read from afar meanwhile."""
    for key, tokens in left.items():
        sites = readers[key].intersection(speeds) if tokens > 0 else ()
        if sites:
            near = {(site, True) for site in sites if far is None or not far.limits(key, site)}
            of[key] = frozenset(near | {(site, False) for site in sites})
    unions: set[frozenset[tuple[str, bool]]] = set()
    for one in sorted(set(of.values()), key=sorted):
        unions |= {one, *(one | other for other in unions)}
        if len(unions) > _MOST_UNIONS:
            break
    times: list[tuple[float, int, list[str]]] = []
    for union in unions:
        sites = sorted({site for site, _ in union})
        speed = sum(
            speeds[site] if far is None or (site, True) in union else min(speeds[site], far.speeds[site])
            for site in sites
        )
        times.append((sum(left[key] for key in of if of[key] <= union) / speed, -len(sites), sites))
    seconds, _, sites = max(times) if times else (0.0, 0, list[str]())
    return seconds, frozenset(sites)


def cheapest(
    left: Mapping[ShardClass, float],
    readers: Mapping[ShardClass, frozenset[str]],
    speeds: Mapping[str, float],
    rules: Rules,
    far: Far | None = None,
) -> dict[tuple[ShardClass, str], float]:
    """Tokens of each class for each site: the plan of least dollars among those of the least time, or a little more. A
    transport problem, by the network simplex of networkx."""
    work = {key: n for key, n in left.items() if n > 0 and not readers[key].isdisjoint(speeds)}
    if len(speeds) == 1:
        return {(key, site): n for key, n in work.items() for site in speeds}
    networkx: Any = import_module("networkx")  # it has no types, and takes long to import
    unit = max(sum(work.values()) / _UNITS, 1e-9)
    units = {key: max(1, round(n / unit)) for key, n in work.items()}
    seconds = least_time(work, readers, speeds, far)[0] * _SLACK
    while work:
        graph = networkx.DiGraph()
        graph.add_node("from", demand=-sum(units.values()))
        graph.add_node("to", demand=sum(units.values()))
        for key, n in units.items():
            graph.add_edge("from", key, capacity=n, weight=0)
            for site in sorted(readers[key].intersection(speeds)):
                over = ("afar", site) if far is not None and far.limits(key, site) else site
                graph.add_edge(key, over, capacity=n, weight=round(1e6 * key.price(rules, site)))
        for site, speed in sorted(speeds.items()):
            graph.add_edge(site, "to", capacity=math.ceil(speed * seconds / unit) + 1, weight=0)
            if far is not None and site in far.speeds:
                afar = math.ceil(far.speeds[site] * seconds / unit) + 1
                graph.add_edge(("afar", site), site, capacity=afar, weight=0)
        try:
            _, flow = networkx.network_simplex(graph)
        except networkx.NetworkXUnfeasible:  # the least time was that of some sets alone, or rounding took a unit
            seconds *= 1.1
            continue
        return {
            (key, over if isinstance(over, str) else over[1]): n * unit
            for key in units
            for over, n in flow[key].items()
            if n
        }
    return {}


@dataclass
class _Plan:
    """Tokens of each class for each site, which deals use up."""

    sites: frozenset[str]
    left: dict[tuple[ShardClass, str], float]
    deals: int = 0

    def is_old(self, sites: Collection[str]) -> bool:
        """Whether it is for other sites, or from long ago."""
        return self.deals > _DEALS_OF_PLAN or self.sites != frozenset(sites)

    def shares(self, site: str, classes: Iterable[ShardClass]) -> list[float]:
        """The shares of a site."""
        return [max(self.left.get((key, site), 0.0), 0.0) for key in classes]


class Dealer:
    """Gives a site its next shards, of one version of a data set and in one run."""

    def __init__(self, rules: Rules, shards: Sequence[Shard]) -> None:
        """Shards of equal SHA-256 are one shard in several stores."""
        self._rules = rules
        self._rows = list(copies(shards).values())
        """By shard: where it lies."""
        self._stores = [shard.store for shard in shards]
        first = np.array([own[0] for own in self._rows], np.int64)
        self._first = first
        self._tokens = np.array([shard.tokens for shard in shards], np.float64)[first]
        self._hashes = np.array([int(shard.sha256[:16], 16) for shard in shards], np.uint64)[first]
        keys = [ShardClass.of([shards[row] for row in own]) for own in self._rows]
        self._classes = sorted(set(keys), key=lambda key: (key.stores, key.labels))
        number_of = {key: number for number, key in enumerate(self._classes)}
        self._class = np.array([number_of[key] for key in keys], np.int64)
        self._plans: dict[int, _Plan] = {}
        """By the pass that they end."""
        self._fixed_plan: _Plan | None = None

    def pass_plan(self, speeds: Mapping[str, float]) -> dict[tuple[ShardClass, str], float]:
        """Tokens of each class for each site, for a whole pass of these sites."""
        return self._cheapest(self._tokens, speeds)

    def fix_plan(self, plan: Mapping[tuple[ShardClass, str], float]) -> None:
        """Deal by what `pass_plan` gave, for good: not by plans that follow what is left, and which sites are there."""
        self._fixed_plan = _Plan(frozenset(), dict(plan))

    def next_shards(
        self, site: str, deal: tuple[int, int], speeds: Mapping[str, float], dealt: NDArray[np.int32]
    ) -> list[int]:
        """Up to `SHARDS_OF_DEAL` shards, the best first; none where there is nothing that the site may read. They were
        dealt least often of what it may read, or once more than that.

        Args:
            site: That is to read them.
            deal: The run, and the number of the deal in it.
            speeds: Tokens a second, of all sites that are there.
            dealt: How often each of `shards` has been dealt.
        """
        counts = dealt[self._first]
        readable = np.array([self._rules.may_read(site, key.labels) for key in self._classes], bool)[self._class]
        if not readable.any():
            return []
        if site not in speeds:
            speeds = {**speeds, site: max(speeds.values(), default=1.0)}
        speeds = {name: max(speed, 1e-9) for name, speed in speeds.items()}
        key, times = self._drawn(site, deal, speeds, counts, readable)
        rows = np.flatnonzero((counts == times) & (self._class == self._classes.index(key)))
        best = rows[np.argsort(self._margins(site, key, speeds, rows), kind="stable")][:SHARDS_OF_DEAL]
        if (plan := self._plans.get(times)) is not None and (key, site) in plan.left:
            plan.left[key, site] -= float(self._tokens[best].sum())
        return [self._nearest(site, self._rows[int(shard)]) for shard in best]

    def _drawn(
        self,
        site: str,
        deal: tuple[int, int],
        speeds: Mapping[str, float],
        counts: NDArray[np.int32],
        readable: NDArray[np.bool_],
    ) -> tuple[ShardClass, int]:
        """The class of a deal, and how often its shards were dealt before: by the shares that the plan of this pass
        has for the site, or else that of the next one. Where neither has any, what costs least."""
        least = int(counts[readable].min())
        for times in (least, least + 1):
            here = self._classes_of(readable & (counts == times))
            weights = self._weights(site, here, times, speeds, counts) if here else []
            if any(weights):
                place = _unit("deal", *deal) * sum(weights)
                ends = zip(here, accumulate(weights), strict=True)
                return next((key for key, end in ends if place < end), here[-1]), times
        here = self._classes_of(readable & (counts == least))
        return min(here, key=lambda key: self._price(key, site)), least

    def _classes_of(self, rows: NDArray[np.bool_]) -> list[ShardClass]:
        return [self._classes[int(index)] for index in np.unique(self._class[rows])]

    def _weights(
        self, site: str, here: Sequence[ShardClass], times: int, speeds: Mapping[str, float], counts: NDArray[np.int32]
    ) -> list[float]:
        """Tokens of each class that the plan has left for the site; where that is nothing, also in a new plan: alike,
        what the site reads at no higher price than those for whom the plan has it."""
        plan = self._fixed_plan or self._plans.get(times)
        if plan is None or (plan is not self._fixed_plan and (plan.is_old(speeds) or not any(plan.shares(site, here)))):
            left = self._cheapest(self._tokens * np.maximum(times + 1 - counts, 0), speeds)
            plan = _Plan(frozenset(speeds), left)
            self._plans = {key: one for key, one in self._plans.items() if key >= counts.min()} | {times: plan}
        plan.deals += 1
        shares = plan.shares(site, here)
        return shares if any(shares) else [float(self._price(key, site) <= self._highest(plan, key)) for key in here]

    def _cheapest(self, reads: NDArray[np.float64], speeds: Mapping[str, float]) -> dict[tuple[ShardClass, str], float]:
        """reads: tokens of each shard that are to be read."""
        sums = np.bincount(self._class, reads, len(self._classes))
        left = {key: float(tokens) for key, tokens in zip(self._classes, sums, strict=True)}
        return cheapest(left, readers_of(self._classes, self._rules, speeds), speeds, self._rules)

    def _price(self, key: ShardClass, site: str) -> float:
        return key.price(self._rules, site)

    def _highest(self, plan: _Plan, key: ShardClass) -> float:
        """The highest price that the plan has a class read for."""
        return max((self._price(key, site) for (of, site), n in plan.left.items() if of == key and n > 0), default=0.0)

    def _margins(
        self, site: str, key: ShardClass, speeds: Mapping[str, float], rows: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """By how much this site is ahead of the best other reader in the hash of each shard; the least is the best."""
        own = _scores(self._hashes[rows], site, speeds[site])
        others = [name for name in speeds if name != site and self._rules.may_read(name, key.labels)]
        if not others:
            return own
        return own - np.min([_scores(self._hashes[rows], name, speeds[name]) for name in others], axis=0)

    def _nearest(self, site: str, rows: Sequence[int]) -> int:
        return min(rows, key=lambda row: (ShardClass((self._stores[row],), ()).price(self._rules, site), row))


def copies(shards: Sequence[Shard]) -> dict[str, list[int]]:
    """The numbers of the shards by SHA-256: those of an equal one are one shard in several places."""
    rows: dict[str, list[int]] = {}
    for row, shard in enumerate(shards):
        rows.setdefault(shard.sha256, []).append(row)
    return rows


def readers_of(
    classes: Collection[ShardClass], rules: Rules, sites: Collection[str]
) -> dict[ShardClass, frozenset[str]]:
    """Which of the sites may read each class."""
    return {key: frozenset(site for site in sites if rules.may_read(site, key.labels)) for key in classes}


def _scores(hashes: NDArray[np.uint64], site: str, speed: float) -> NDArray[np.float64]:
    """-ln(u) / speed, with u from shard and site: of several sites the least one wins with a chance by its speed."""
    mixed = hashes ^ np.uint64(int.from_bytes(hashlib.sha256(site.encode()).digest()[:8], "little"))
    with np.errstate(over="ignore"):  # splitmix64's finalizer
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    unit = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) + 0.5
    return -_log(unit / 2.0**53) / speed


def _log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """To 7 digits, with the same bits on every processor, which libraries do not promise: sites deal alike by it."""
    mantissa, exponent = np.frexp(values)
    part = (mantissa - 1) / (mantissa + 1)
    series = np.zeros_like(part)
    for divisor in range(13, 0, -2):
        series = series * (part * part) + 1 / divisor
    return exponent * 0.6931471805599453 + 2 * part * series


def _unit(*what: object) -> float:
    """From 0 to 1, by a hash."""
    return int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:8], "little") / 2.0**64
