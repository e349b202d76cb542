"""What the leader knows of the run's data set, and what it deals of it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.bad_input import BadInput
from geocomm.data.deal_records import DealtSet, count, shards_of
from geocomm.elastic.journal.entries import Data, Deal, Genesis, Join, Ready
from geocomm.elastic.journal.run_data import RunData
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.leading.leader import read_data
from support.small_catalog import add_version, shard

LENGTH = 10


def run_of(data: RunData, sites: str = "abc") -> RunState:
    state = RunState()
    put(state, Genesis, run="1" * 32, settings={}, layout="3" * 32, digests=("4" * 32,), every=10)
    version_of(state, data)
    for site in sites:
        put(state, Join, site=site, store=f"{ord(site):032x}")
        put(state, Ready, site=site)
    return state


def put(state: RunState, kind: Any, **fields: Any) -> None:
    state.apply(kind(index=state.head.index + 1, prev=state.head.hash, term=0, **fields))


def version_of(state: RunState, data: RunData) -> None:
    put(state, Data, set="cat", number=data.number, sha256=data.sha256, sequence_length=LENGTH, held_out_every=4)


def deal(state: RunState, data: RunData, site: str) -> list[tuple[int, int]]:
    found = data.next_deal(state, site, dict.fromkeys("abc", 1.0))
    if found is None:
        return []
    put(state, Deal, site=site, shards=found[0], sequences=found[1])
    return shards_of(found[0])


def read(folder: Path, state: RunState | None = None, known: RunData | None = None) -> RunData:
    versions = {} if state is None else {one.number: one.sha256 for one in state.data.values()}
    return read_data(DealtSet(set=str(folder), sequence_length=LENGTH, held_out_every=4), versions, known)


def test_each_shard_is_dealt_once_a_pass_to_those_who_may_read_it(tmp_path: Path) -> None:
    eu = [shard(100 + i, labels=("eu",)) for i in range(3)]
    add_version(tmp_path, 1, [shard(i) for i in range(20)] + [shard(50, tokens=9)], eu)
    data = read(tmp_path)
    state = run_of(data)
    dealt: Counter[tuple[int, int]] = Counter()
    by_b: set[tuple[int, int]] = set()
    for turn in range(60):
        site = "abc"[turn % 3]
        found = deal(state, data, site)
        dealt.update(found)
        by_b |= set(found) if site != "a" else set()
        if len(dealt) == 23:
            break
    assert dealt == {**{(0, i): 1 for i in range(20)}, **{(1, i): 1 for i in range(3)}}  # the short one has no sequence
    assert all(part == 0 for part, _ in by_b)
    assert {one.sequences for one in state.deals.values()} <= {3 * n for n in range(1, 9)}  # 4 in a shard, 1 held out


def test_library_that_the_first_deal_needs_is_imported_with_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a thread: the leader would answer nobody meanwhile."""
    monkeypatch.delitem(sys.modules, "networkx", raising=False)
    add_version(tmp_path, 1, [shard(0)])
    read(tmp_path)
    assert "networkx" in sys.modules


def test_deals_of_a_small_data_set_leave_some_for_others(tmp_path: Path) -> None:
    add_version(tmp_path, 1, [shard(i) for i in range(24)])
    data = read(tmp_path)
    assert len(deal(run_of(data), data, "a")) == 2


def test_newer_version_counts_what_was_dealt_before_and_erased_shards_are_dealt_no_more(tmp_path: Path) -> None:
    add_version(tmp_path, 1, [shard(i) for i in range(8)])
    data = read(tmp_path)
    state = run_of(data)
    first = deal(state, data, "a")
    [old] = state.deals.values()
    assert read(tmp_path, state, data) is data
    add_version(tmp_path, 2, [shard(i) for i in range(8) if (0, i) != first[0]], [shard(9)])
    newer = read(tmp_path, state, data)
    assert (newer.number, newer is data) == (2, False)
    version_of(state, newer)
    assert data.may_read(state, "b", old)
    assert not newer.may_read(state, "b", old)
    seen = [place for _ in range(8) for place in deal(state, newer, "b")]
    assert sorted(seen)[-1] == (1, 0)
    again = read(tmp_path, state)  # another leader
    assert again.next_deal(state, "c", {"c": 1.0}) == newer.next_deal(state, "c", {"c": 1.0})


def test_label_that_nobody_who_is_there_may_read_waits(tmp_path: Path) -> None:
    add_version(tmp_path, 1, [shard(0)], [shard(1, labels=("eu",))])
    data = read(tmp_path)
    state = run_of(data)
    assert data.waits(state, ["a", "b"]) == []
    assert data.waits(state, ["b", "c"]) == ["label eu waits for a, and nobody else may read it"]
    for _ in range(3):
        deal(state, data, "b")
    assert data.waits(state, ["a", "b"]) == ["label eu is read less often than other data"]


def test_what_is_left_of_a_pass_is_that_which_was_dealt_less_often_and_copies_count_once(tmp_path: Path) -> None:
    add_version(tmp_path, 1, [shard(0), shard(1), shard(0)._replace(path="copy")])
    data = read(tmp_path)
    state = run_of(data)
    each = data.readable("a") // 3
    seen = [data.undealt(state)]
    for _ in range(4):
        deal(state, data, "a")
        seen.append(data.undealt(state))
    assert seen == [2 * each, each, 0, each, 0]


@pytest.mark.parametrize("labels", [(), ("eu",)])
def test_new_data_beside_what_was_read_before_is_no_trouble(tmp_path: Path, labels: tuple[str, ...]) -> None:
    old = [shard(0), shard(1, labels=("eu",))]
    add_version(tmp_path, 1, old)
    data = read(tmp_path)
    state = run_of(data)
    for _ in range(8):
        deal(state, data, "a")
    add_version(tmp_path, 2, old, [shard(2, labels=labels)])
    newer = read(tmp_path, state)
    version_of(state, newer)
    assert newer.waits(state, ["a", "b"]) == []


def test_version_that_is_another_one_than_the_run_has_read_is_refused(tmp_path: Path) -> None:
    add_version(tmp_path, 1, [shard(i) for i in range(4)])
    state = run_of(read(tmp_path))
    path = tmp_path / "000001.json"
    path.write_text(json.dumps(json.loads(path.read_text())))
    with pytest.raises(BadInput, match="another one than the run has read"):
        read(tmp_path, state)


def test_catalog_without_a_version_or_with_a_damaged_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no version"):
        read(tmp_path)
    add_version(tmp_path, 1, [shard(i) for i in range(4)])
    next((tmp_path / "parts").iterdir()).write_bytes(b"")
    with pytest.raises(BadInput, match="part"):
        read(tmp_path)


def test_counts_are_of_whole_sequences_that_are_not_held_out(tmp_path: Path) -> None:
    add_version(tmp_path, 1, [shard(0, tokens=99), shard(1, tokens=31, labels=("eu",))])
    data = read(tmp_path)
    assert (data.readable("a"), data.readable("b")) == (7 + 3, 7)


def test_another_leader_deals_by_what_was_dealt_in_deals_that_are_forgotten(tmp_path: Path) -> None:
    add_version(tmp_path, 1, [shard(i) for i in range(8)], [shard(20 + i) for i in range(5)])
    data = read(tmp_path)
    state = run_of(data)
    for _ in range(9):
        deal(state, data, "a")
    whole, forgets = state.text, RunState.read(state.text)
    for index in sorted(forgets.deals)[:7]:
        count(forgets.dealt.setdefault(forgets.deals[index].data, {}), forgets.deals.pop(index).shards)
    here, there = (read(tmp_path, one) for one in (state, forgets))
    for name in "bcab":
        assert here.undealt(state) == there.undealt(forgets)
        assert deal(state, here, name) == deal(forgets, there, name)
    assert whole != forgets.text
