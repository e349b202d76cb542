"""Time, dollars and mix of rules that say which site reads which shards: `python benchmarks/bench_data_rule.py`.

Three stores and three sites as of a run of 2.3 TB of tokens; a site asks for eight shards when it has read its last
ones. With labels, a part of Frankfurt's data may be read in its region alone. Nothing is read; the rule is geocomm's
own (geocomm/data/deals.py), and that of the peers is written here:

- own store first: what few may read, then the nearest store, then the others
- hash rings: each shard's site by consistent hashing, with 3 points a site, or 100 a unit of speed

It takes half a minute. Results: benchmarks/results/data-rule.md. Exit status 1: a rule left a shard out, or geocomm's
dealt one to a site that may not read it.
"""

from __future__ import annotations

import argparse
import bisect
import hashlib
import shlex
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from geocomm.data.catalog import Label, Rules, Shard, Store
from geocomm.data.deals import Dealer, ShardClass, cheapest, least_time, readers_of
from geocomm.lab.bench.bench_report import Conditions, page, write_pair

ROOT = Path(__file__).resolve().parent.parent
TOKENS = (64 << 20) // 4
GB = TOKENS * 4 / 1e9
"""Of a shard."""
STORES = {"eu": 0.9, "us": 1.0, "asia": 0.4}
"""TB."""
SPEEDS = {"frankfurt": 16 * 9500.0, "virginia": 64 * 9500.0, "tokyo": 16 * 9500.0}
RULES = Rules(
    sites={"frankfurt": "eu", "virginia": "us", "tokyo": "asia"},
    stores={
        "eu": Store(url="s3://eu", region="eu", price=0.02),
        "us": Store(url="s3://us", region="us", price=0.02),
        "asia": Store(url="s3://asia", region="asia", price=0.09),
    },
    labels={"personal": Label(readers=("eu",))},
)
SLICES = 20
Deal = tuple[float, str, list[int]]
"""When, to which site, and which shards."""


@dataclass
class Sample:
    """Of one rule and one pass."""

    story: str
    rule: str
    time_over_least: float
    dollars: float
    least_dollars: float
    drift: float
    """The most by which the share of a store in a twentieth of the pass differs from that in all. While all read."""
    forbidden: int
    """Shards that went to a site that may not read them."""
    ms_median: float
    ms_most: float
    """Of the rule, for a deal."""


def shards_of(personal_tb: float) -> list[Shard]:
    """Of all stores, so much of the first with a label."""
    shards: list[Shard] = []
    for store, size in STORES.items():
        for number in range(round(size * 1e3 / GB)):
            labels = ("personal",) if store == "eu" and number < personal_tb * 1e3 / GB else ()
            sha256 = hashlib.sha256(f"{store} {number}".encode()).hexdigest()
            shards.append(Shard(sha256, store, f"{number}", 0, TOKENS, labels))
    return shards


def asked(
    shards: Sequence[Shard], next_shards: Callable[[str, int, np.ndarray], list[int]]
) -> tuple[list[Deal], list[float]]:
    """Deals until all was dealt: whoever has read its last one asks. And what each took, in milliseconds."""
    dealt, ready = np.zeros(len(shards), np.int32), dict.fromkeys(SPEEDS, 0.0)
    deals, took = list[Deal](), list[float]()
    while ready and not dealt.all():
        site = min(ready, key=lambda name: (ready[name], name))
        began = time.perf_counter()
        found = next_shards(site, len(took), dealt)
        took.append(1e3 * (time.perf_counter() - began))
        if not found:
            del ready[site]
            continue
        deals.append((ready[site], site, found))
        dealt[found] += 1
        ready[site] += TOKENS * len(found) / SPEEDS[site]
    return deals, took


def by_rule(shards: Sequence[Shard]) -> tuple[list[Deal], list[float]]:
    """geocomm's."""
    dealer = Dealer(RULES, shards)
    return asked(shards, lambda site, number, dealt: dealer.next_shards(site, (1, number), SPEEDS, dealt))


def own_first(shards: Sequence[Shard]) -> tuple[list[Deal], list[float]]:
    """What few may read, then what costs least."""
    left: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for row, shard in enumerate(shards):
        left.setdefault((shard.store, shard.labels), []).append(row)

    def chosen(site: str, number: int, dealt: np.ndarray) -> list[int]:
        mine = [key for key, rows in left.items() if rows and RULES.may_read(site, key[1])]
        if not mine:
            return []
        key = min(mine, key=lambda one: (not one[1], ShardClass((one[0],), one[1]).price(RULES, site), one))
        found = left[key][:8]
        del left[key][:8]
        return found

    return asked(shards, chosen)


def ring(points: Callable[[str], int]) -> Callable[[Sequence[Shard]], tuple[list[Deal], list[float]]]:
    """Consistent hashing, with so many points of a site."""

    def place(text: str) -> int:
        return int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)

    marks = sorted((place(f"{site} {number}"), site) for site in SPEEDS for number in range(points(site)))

    def all_deals(shards: Sequence[Shard]) -> tuple[list[Deal], list[float]]:
        own: dict[str, list[int]] = {site: [] for site in SPEEDS}
        for row, shard in enumerate(shards):
            own[marks[bisect.bisect(marks, (place(shard.sha256), "")) % len(marks)][1]].append(row)
        order = np.random.default_rng(1)
        deals: list[Deal] = []
        for site, rows in own.items():
            mixed = order.permutation(rows).tolist()
            for first in range(0, len(mixed), 8):
                deals.append((first * TOKENS / SPEEDS[site], site, mixed[first : first + 8]))
        return deals, [0.0]

    return all_deals


def judged(story: str, rule: str, shards: Sequence[Shard], deals: Sequence[Deal], took: Sequence[float]) -> Sample:
    """What the deals take and cost."""
    classes = Counter[ShardClass]()
    for shard in shards:
        classes[ShardClass((shard.store,), shard.labels)] += TOKENS
    readers = readers_of(classes, RULES, SPEEDS)
    ends, dollars, forbidden, seen = dict.fromkeys(SPEEDS, 0.0), 0.0, 0, set[int]()
    for when, site, rows in deals:
        forbidden += sum(not RULES.may_read(site, shards[row].labels) for row in rows)
        if new := set(rows) - seen:  # else it is in its next pass
            ends[site] = max(ends[site], when + len(rows) * TOKENS / SPEEDS[site])
        dollars += GB * sum(ShardClass((shards[row].store,), ()).price(RULES, site) for row in new)
        seen |= new
    if len(seen) != len(shards):
        raise SystemExit(f"{rule}: {len(shards) - len(seen)} shards were not dealt")
    least = cheapest(classes, readers, SPEEDS, RULES)
    least_dollars = sum(4e-9 * tokens * key.price(RULES, site) for (key, site), tokens in least.items())
    while_all = min(ends.values())
    slices = [Counter[str]() for _ in range(SLICES)]
    for when, _, rows in deals:
        if when < while_all:
            slices[int(when / while_all * SLICES)].update(shards[row].store for row in rows)
    whole = Counter(shard.store for shard in shards)
    drift = max(
        abs(part[store] / part.total() - whole[store] / len(shards)) for part in slices[:-1] for store in STORES
    )
    over = max(ends.values()) / least_time(classes, readers, SPEEDS)[0]
    return Sample(story, rule, over, dollars, least_dollars, drift, forbidden, statistics.median(took), max(took))


def _page(conditions: Conditions, samples: Sequence[Sample]) -> str:
    rows = [
        f"| {one.story} | {one.rule} | {one.time_over_least:.3f} | {one.dollars:.2f} ({one.least_dollars:.2f}) | "
        f"{one.drift:.3f} | {one.forbidden:,} | {one.ms_median:.1f} ({one.ms_most:.1f}) |"
        for one in samples
    ]
    return page(
        "Data: rules that say which site reads which shards",
        conditions,
        "Stores of 0.9 TB in Frankfurt, 1.0 in Virginia and 0.4 in Tokyo; 16, 64 and 16 GPUs of 9,500 tokens a "
        f"second; {len(shards_of(0)):,} shards; 0.02 dollars a GB out of the first two, 0.09 out of the third. "
        "Nothing is read: a site asks for eight shards when it would have read its last ones. *Time* and *dollars* are "
        "those of the pass; a site that begins its next one reads on. *Drift*: the most by which the share of a store "
        "in a twentieth of the time, while all sites read the pass, differs from its share of all.",
        "| data | rule | time over the least | dollars (least) | drift | forbidden shards | ms a deal (longest) |",
        "|---|---|---:|---:|---:|---:|---:|",
        *rows,
    )


def main() -> int:
    """Run, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    arguments = parser.parse_args()
    conditions = Conditions.here(shlex.join(["python", "benchmarks/bench_data_rule.py", *sys.argv[1:]]))
    rules = {
        "geocomm": by_rule,
        "own store first": own_first,
        "ring, 3 points a site": ring(lambda site: 3),
        "ring, 100 points a unit of speed": ring(lambda site: round(100 * SPEEDS[site] / min(SPEEDS.values()))),
    }
    samples: list[Sample] = []
    for story, personal_tb in (("all may read all", 0.0), ("0.1 TB of Frankfurt's stays", 0.1), ("0.46 TB stay", 0.46)):
        shards = shards_of(personal_tb)
        for name, rule in rules.items():
            samples.append(judged(story, name, shards, *rule(shards)))
            print(samples[-1], flush=True)
    write_pair(
        arguments.out / "data-rule.md", _page(conditions, samples), {"samples": [asdict(one) for one in samples]}
    )
    return int(any(one.forbidden for one in samples if one.rule == "geocomm"))


if __name__ == "__main__":
    sys.exit(main())
