"""Which site reads which shards next."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from bench_data_rule import RULES as THREE
from hypothesis import given
from hypothesis import strategies as st

from geocomm.data.catalog import Label, Rules, Shard
from geocomm.data.deals import Dealer, Far, ShardClass, cheapest, least_time, readers_of

SITES = THREE.sites
RULES = THREE.model_copy(update={"labels": THREE.labels | {"west": Label(readers=("eu", "us"))}})
FREE = RULES.model_copy(
    update={"stores": {name: store.model_copy(update={"price": 0.0}) for name, store in RULES.stores.items()}}
)
tokens = st.integers(0, 1000)
SPEEDS = {"frankfurt": 16.0, "virginia": 64.0, "tokyo": 16.0}


def shard(number: int, store: str, *labels: str) -> Shard:
    return Shard(f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}".ljust(64, "0"), store, f"{number}", 0, 1000, labels)


def price(rules: Rules, site: str, one: Shard) -> float:
    return ShardClass.of([one]).price(rules, site)


def read_all(
    shards: list[Shard], speeds: dict[str, float], passes: int = 1, run: int = 1, rules: Rules = RULES
) -> list[tuple[str, list[int]]]:
    """Deals until each shard was dealt so often, to whichever site has read its last one first."""
    dealer, dealt = Dealer(rules, shards), np.zeros(len(shards), np.int32)
    ready, deals = dict.fromkeys(speeds, 0.0), list[tuple[str, list[int]]]()
    while (dealt < passes).any():
        site = min(ready, key=lambda name: (ready[name], name))
        found = dealer.next_shards(site, (run, len(deals)), speeds, dealt)
        if not found:
            ready[site] = float("inf")
            continue
        dealt[found] += 1
        deals.append((site, found))
        ready[site] += sum(shards[row].tokens for row in found) / speeds[site]
    return deals


@given(
    st.lists(
        st.tuples(st.sampled_from(["eu", "us", "asia"]), st.sampled_from([(), ("personal",), ("west",)])), min_size=1
    ),
    st.dictionaries(st.sampled_from(list(SITES)), st.floats(1, 30), min_size=1).filter(lambda one: "frankfurt" in one),
    st.integers(1, 3),
    st.sampled_from([RULES, FREE]),
)
def test_each_shard_is_dealt_to_its_readers_alone_and_none_twice_before_all_once_that_it_reads_for_nothing(
    kinds: list[tuple[str, tuple[str, ...]]], speeds: dict[str, float], passes: int, rules: Rules
) -> None:
    shards = [shard(number, store, *labels) for number, (store, labels) in enumerate(kinds)]
    dealt = np.zeros(len(shards), np.int32)
    for site, found in read_all(shards, speeds, passes, rules=rules):
        assert 0 < len(found) == len(set(found)) <= 8
        readable = np.array([rules.may_read(site, one.labels) for one in shards])
        assert readable[found].all()
        least = readable & (dealt == dealt[readable].min())
        if not least[found].all():
            assert (dealt[found] == dealt[readable].min() + 1).all()
            assert all(price(rules, site, shards[row]) > 0 for row in np.flatnonzero(least))
        dealt[found] += 1


@given(
    st.dictionaries(st.sampled_from(["personal", "west", ""]), tokens, min_size=1),
    st.dictionaries(st.sampled_from(list(SITES)), st.floats(0.1, 100), min_size=1),
)
def test_least_time_is_that_of_all_sets_of_sites(counts: dict[str, int], speeds: dict[str, float]) -> None:
    left = {ShardClass(("eu",), (label,) if label else ()): float(count) for label, count in counts.items()}
    readers = readers_of(left, RULES, speeds)
    by_hand = 0.0
    for count in range(1, len(speeds) + 1):
        for some in itertools.combinations(speeds, count):
            inside = sum(n for key, n in left.items() if readers[key] and readers[key] <= set(some))
            by_hand = max(by_hand, inside / sum(speeds[site] for site in some))
    assert least_time(left, readers, speeds)[0] == pytest.approx(by_hand)


@given(
    st.dictionaries(st.tuples(st.sampled_from(list(RULES.stores)), st.sampled_from(["personal", "west", ""])), tokens),
    st.dictionaries(st.sampled_from(list(SITES)), st.floats(0.1, 100), min_size=1),
    st.dictionaries(st.sampled_from(list(SITES)), st.floats(0.1, 100)),
)
def test_least_time_over_slow_lines_is_that_of_all_sets_of_classes(
    counts: dict[tuple[str, str], int], speeds: dict[str, float], slow: dict[str, float]
) -> None:
    left = {ShardClass((store,), (label,) if label else ()): float(n) for (store, label), n in counts.items()}
    readers, far = readers_of(left, RULES, speeds), Far(RULES, slow)
    by_hand = 0.0
    for count in range(1, len(left) + 1):
        for some in itertools.combinations([key for key in left if readers[key]], count):
            speed = 0.0
            for site in speeds:
                own = [key for key in some if site in readers[key]]
                afar = min(speeds[site], slow.get(site, speeds[site]))
                speed += (speeds[site] if any(key.is_near(RULES, site) for key in own) else afar) if own else 0.0
            by_hand = max(by_hand, sum(left[key] for key in some) / speed)
    seconds, _ = least_time(left, readers, speeds, far)
    assert seconds == pytest.approx(by_hand)
    plan = cheapest(left, readers, speeds, RULES, far)
    total = sum(n for key, n in left.items() if readers[key])
    assert sum(plan.values()) == pytest.approx(total, rel=1e-3)
    for site, speed in slow.items():
        afar = sum(n for (key, to), n in plan.items() if to == site and not key.is_near(RULES, site))
        assert afar <= 1.03 * seconds * speed + 1e-4 * total


def test_plan_takes_the_least_time_and_what_is_near() -> None:
    left = {ShardClass((store,), ()): 1000.0 for store in RULES.stores}
    plan = cheapest(left, readers_of(left, RULES, SPEEDS), SPEEDS, RULES)
    by_site = dict.fromkeys(SITES, 0.0)
    for (_, site), tokens in plan.items():
        by_site[site] += tokens
    for site, tokens in by_site.items():
        assert tokens / SPEEDS[site] <= 1.03 * 3000 / sum(SPEEDS.values())
    assert sum(by_site.values()) == pytest.approx(3000, rel=1e-4)
    own = {
        site: sum(n for (key, to), n in plan.items() if to == site and key.stores == (SITES[site],)) for site in SITES
    }
    assert own["virginia"] == pytest.approx(1000, rel=1e-3)
    assert own["frankfurt"] == pytest.approx(by_site["frankfurt"], rel=1e-3)


def test_site_begins_its_next_pass_where_others_read_the_rest_in_time_for_less() -> None:
    """Frankfurt alone reads what must stay, and that takes longest. Tokyo has the time to read all of its own."""
    counts = {("eu", "personal"): 920, ("eu",): 880, ("us",): 2000, ("asia",): 800}
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    shards = [shard(number, *kind) for number, kind in enumerate(kinds)]
    dealt, took, dollars, ends = Counter[int](), Counter[str](), 0.0, dict[str, float]()
    for site, found in read_all(shards, SPEEDS):
        took[site] += 1000 * len(found)
        for row in found:
            if not dealt[row]:
                dollars += 1000 * price(RULES, site, shards[row])
                ends[site] = took[site] / SPEEDS[site]
            dealt[row] += 1
    left = {ShardClass.of([shard(0, *kind)]): 1000.0 * count for kind, count in counts.items()}
    readers = readers_of(left, RULES, SPEEDS)
    least = sum(n * key.price(RULES, site) for (key, site), n in cheapest(left, readers, SPEEDS, RULES).items())
    assert dollars <= 1.1 * least
    assert max(ends.values()) <= 1.03 * least_time(left, readers, SPEEDS)[0]
    assert ends["virginia"] < 0.8 * ends["frankfurt"]


def test_mix_of_stores_stays_the_same_over_a_pass() -> None:
    shards = [shard(number, ("eu", "us", "us", "asia")[number % 4]) for number in range(4000)]
    deals = read_all(shards, SPEEDS)
    rows = [row for _, found in deals for row in found]
    for tenth in np.array_split(np.array(rows)[:3600], 9):  # the last deals take what is left
        mix = Counter(shards[int(row)].store for row in tenth)
        assert mix["us"] / len(tenth) == pytest.approx(0.5, abs=0.15)


def test_a_site_gets_in_the_next_pass_what_it_has_read_in_this_one() -> None:
    shards = [shard(number, ("eu", "us", "asia")[number % 3]) for number in range(3000)]
    deals = read_all(shards, SPEEDS, passes=2)
    reader = [dict[int, str](), dict[int, str]()]
    dealt = Counter[int]()
    for site, found in deals:
        for row in found:
            reader[dealt[row]][row] = site
            dealt[row] += 1
    same = sum(reader[0][row] == reader[1][row] for row in range(len(shards)))
    assert same > 0.8 * len(shards)


def test_copies_in_several_stores_are_one_shard() -> None:
    shards = [shard(1, "us"), shard(1, "asia")]
    dealer, dealt = Dealer(RULES, shards), np.zeros(2, np.int32)
    assert dealer.next_shards("tokyo", (1, 0), SPEEDS, dealt) == [1]
    assert dealer.next_shards("virginia", (1, 0), SPEEDS, dealt) == [0]
    assert dealer.next_shards("frankfurt", (1, 0), SPEEDS, dealt) == [0]


def test_site_that_may_read_nothing_gets_nothing() -> None:
    dealer = Dealer(RULES, [shard(1, "eu", "personal")])
    assert dealer.next_shards("tokyo", (1, 0), SPEEDS, np.zeros(1, np.int32)) == []
    assert dealer.next_shards("elsewhere", (1, 0), SPEEDS, np.zeros(1, np.int32)) == []


def test_deals_are_those_of_every_machine() -> None:
    shards = [shard(number, ("eu", "us", "asia")[number % 3]) for number in range(30)]
    assert read_all(shards, SPEEDS, run=7)[:3] == [
        ("frankfurt", [6, 15, 12, 18, 21, 27, 3, 24]),
        ("tokyo", [20, 5, 8, 14, 29, 17, 26, 11]),
        ("virginia", [9, 0]),
    ]
