"""Deals in the journal: their entries, which of them fit, and what a run is after them."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from geocomm.cli.log import told
from geocomm.core.records import line_of
from geocomm.data.deal_records import MOST_SHARDS, DealtCounts, Piece, count, counted, cut, length, shards_of, text_of
from geocomm.elastic.journal.entries import (
    Away,
    BadLineError,
    Data,
    Deal,
    Entry,
    Genesis,
    Join,
    Kept,
    Listed,
    Ready,
    Removed,
    Round,
    Skip,
    Snapshot,
    TakenBack,
    entry_of,
)
from geocomm.elastic.journal.run_state import RunState, Standing
from geocomm.elastic.site.site_ranks import begins_with, own_deals
from support.lies import lies, truth

LENGTH = 10
STORES = {"a": "5" * 32, "b": "6" * 32}
ENTRY: TypeAdapter[Any] = TypeAdapter(Entry)
NEW = {"data": Data, "deal": Deal, "taken_back": TakenBack}


def put(state: RunState, kind: Any, /, **fields: Any) -> Entry:
    head = state.head
    entry: Entry = kind(**{"index": head.index + 1, "prev": head.hash, "term": state.term, **fields})
    state.apply(entry)
    return entry


def version(state: RunState, **changes: Any) -> Entry:
    fields = {"set": "cat", "number": 1, "sha256": "7" * 64, "sequence_length": LENGTH, "held_out_every": 0}
    return put(state, Data, **fields | changes)


def begun(fragments: int = 1, sites: str = "ab") -> RunState:
    state = RunState()
    put(state, Genesis, run="1" * 32, settings={}, layout="3" * 32, digests=("4" * 32,) * fragments, every=10)
    for site in sites:
        put(state, Join, site=site, store=STORES[site])
    for site in sites:
        put(state, Ready, site=site)
    return state


def dealt() -> RunState:
    """Site a has two deals, of 8 and of 4 sequences, at entries 6 and 7; site b has none."""
    state = begun()
    version(state)
    put(state, Deal, site="a", shards="0:0-7", sequences=8)
    put(state, Deal, site="a", shards="1:2", sequences=4)
    return state


def read_until(state: RunState, site: str, tokens: int, fragment: int = 0) -> None:
    frame = Listed(
        site=site,
        frame="a" * 64,
        coded_bytes=1,
        exact_bytes=0,
        weight=7,
        step=30,
        squared_norm=1.0,
        lr=0.1,
        taken=tokens,
    )
    at = state.versions[fragment]
    put(state, Round, fragment=fragment, version=at, members=(frame,), every=0, base=None)


def take_back(state: RunState, site: str) -> None:
    put(state, TakenBack, site=site, taken=LENGTH * state.position(site), why="away for long")


def test_line_of_a_site_is_its_deals_and_its_place_there_is_what_counts() -> None:
    state = dealt()
    assert state.sites["a"].line == (Piece(6, 0, 8), Piece(7, 0, 4))
    read_until(state, "a", 55)  # half of a sequence counts for none
    assert (state.position("a"), state.left("a")) == (5, 7)
    read_until(state, "a", 10**6)  # of a site that counts what was never dealt
    assert (state.position("a"), state.left("a"), state.left("b")) == (12, 0, 0)


def test_taken_back_site_keeps_what_counts_and_others_read_the_rest() -> None:
    state = dealt()
    read_until(state, "a", 30)
    put(state, Away, site="a", why="cut")
    take_back(state, "a")
    assert state.sites["a"].line == (Piece(6, 0, 3),)
    assert state.rests == (Piece(6, 3, 5), Piece(7, 0, 4))
    put(state, Deal, site="b", rest=6, start=3, sequences=5)
    assert state.sites["b"].line == (Piece(6, 3, 5),)
    read_until(state, "b", 20)
    put(state, Away, site="b", why="cut")
    take_back(state, "b")
    assert state.rests == (Piece(7, 0, 4), Piece(6, 5, 3))
    assert RunState.read(state.text).text == state.text


def test_taken_back_site_joins_before_it_is_ready() -> None:
    state = dealt()
    put(state, Away, site="a", why="cut")
    take_back(state, "a")
    with pytest.raises(BadLineError, match="join"):
        put(state, Ready, site="a")
    put(state, Join, site="a", store=STORES["a"])
    put(state, Ready, site="a")
    put(state, Deal, site="a", shards="0:0", sequences=2)
    assert state.sites["a"].line == (Piece(state.head.index, 0, 2),)


def test_taken_back_site_counts_no_new_deal_by_what_a_fragment_had_of_an_old_one() -> None:
    state = begun(fragments=2)
    version(state)
    put(state, Deal, site="a", shards="0:0-7", sequences=8)
    read_until(state, "a", 20, fragment=0)
    read_until(state, "a", 60, fragment=1)
    put(state, Away, site="a", why="cut")
    take_back(state, "a")
    put(state, Join, site="a", store=STORES["a"])
    put(state, Ready, site="a")
    put(state, Deal, site="a", shards="0:0", sequences=5)
    read_until(state, "a", 60, fragment=0)
    assert state.position("a") == 2  # fragment 1 has had nothing of the new deal
    read_until(state, "a", 50, fragment=1)
    assert state.position("a") == 5


def test_void_round_of_a_site_that_is_taken_back_gives_away_more() -> None:
    state = dealt()
    read_until(state, "a", 30)
    read_until(state, "a", 60)
    put(state, Away, site="a", why="cut")
    take_back(state, "a")
    put(state, Skip, fragment=0, version=1, why="lost")
    assert state.left("a") == 3
    take_back(state, "a")
    assert state.rests == (Piece(6, 6, 2), Piece(7, 0, 4), Piece(6, 3, 3))
    put(state, Deal, site="b", rest=6, start=3, sequences=3)
    assert state.sites["b"].line == (Piece(6, 3, 3),)


def test_newer_version_changes_no_deal() -> None:
    state = dealt()
    at = version(state, number=4, sha256="8" * 64).index
    put(state, Deal, site="b", shards="0:0", sequences=2)
    assert [deal.data for deal in state.deals.values()] == [5, 5, at]
    again = RunState.read(state.text)
    assert again.data_in_force is not None
    assert again.data_in_force.number == 4


@pytest.mark.parametrize(
    ("kind", "fields", "why"),
    [
        (Data, {"number": 1}, "version 1 after 1"),
        (Data, {"number": 2, "set": "other"}, "set is cat in this run, not other"),
        (Data, {"number": 2, "sequence_length": 11}, "sequence_length is 10 in this run, not 11"),
        (Data, {"number": 2, "held_out_every": 3}, "held_out_every is 0 in this run, not 3"),
        (Deal, {"site": "c", "shards": "0:0", "sequences": 1}, "c is unknown"),
        (Deal, {"site": "b", "rest": 6, "start": 1, "sequences": 7}, "no such rest of deal 6"),
        (TakenBack, {"site": "a", "taken": 0, "why": ""}, "a is ready"),
        (TakenBack, {"site": "z", "taken": 0, "why": ""}, "z is unknown"),
    ],
)
def test_entry_that_does_not_fit_is_refused_and_changes_nothing(kind: Any, fields: dict[str, Any], why: str) -> None:
    state = dealt()
    if kind is Data:
        fields = {"set": "cat", "sha256": "7" * 64, "sequence_length": LENGTH, "held_out_every": 0, **fields}
    with pytest.raises(BadLineError, match=why):
        put(state, kind, **fields)
    assert vars(state) == vars(dealt())


def test_taken_back_says_what_counts_and_only_of_what_is_left() -> None:
    state = dealt()
    read_until(state, "a", 35)
    put(state, Away, site="a", why="cut")
    with pytest.raises(BadLineError, match="of 12 sequences that a has, 3 count"):
        put(state, TakenBack, site="a", taken=35, why="")
    take_back(state, "a")
    with pytest.raises(BadLineError, match="of 3 sequences that a has, 3 count"):
        take_back(state, "a")


def test_deals_need_a_data_set_which_a_run_has_from_its_beginning() -> None:
    state = begun()
    with pytest.raises(BadLineError, match="no data set"):
        put(state, Deal, site="a", shards="0:0", sequences=1)
    read_until(state, "a", 35)
    with pytest.raises(BadLineError, match="rounds have counted before"):
        version(state)


def test_removed_site_is_taken_back() -> None:
    state = dealt()
    put(state, Removed, site="a", why="sold")
    take_back(state, "a")
    assert state.sites["a"].standing is Standing.REMOVED
    assert length(state.rests) == 12


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10**8)), min_size=1, max_size=MOST_SHARDS, unique=True))
def test_shards_of_a_deal_read_as_they_were_written(shards: list[tuple[int, int]]) -> None:
    assert shards_of(text_of(shards)) == sorted(shards)


@settings(max_examples=300)
@given(st.text(alphabet="0123456789:;,- ", max_size=24))
def test_other_text_is_no_deal_or_reads_as_it_was_written(text: str) -> None:
    try:
        shards = shards_of(text)
    except ValueError:
        return
    assert text_of(shards) == text
    assert 0 < len(shards) <= MOST_SHARDS


@pytest.mark.parametrize(
    "text", ["", "0:", ":1", "0:1-0", "0:01", "0:1,0", "1:0;0:0", "0:0;0:1", "0:0-999999999", "0:0-64", "0:0,1"]
)
def test_text_that_nobody_writes_is_no_deal(text: str) -> None:
    with pytest.raises(ValueError, match="deal"):
        shards_of(text)


@pytest.mark.parametrize("kind", NEW)
def test_every_field_of_the_entries_may_lie_and_ends_in_a_bad_line_at_most(kind: str) -> None:
    known = {"site": "a", "set": "cat", "sha256": "7" * 64, "prev": "0" * 64, "sequences": 3, "shards": "0:1"}
    true = truth(ENTRY, kind, known)
    assert isinstance(entry_of(json.dumps(true)), NEW[kind])
    refused = 0
    for lie in lies(ENTRY, kind, known):
        try:
            entry = entry_of(json.dumps(lie.content))
        except BadLineError:
            refused += 1
            continue
        assert entry_of(line_of(entry)) == entry
        assert told(entry)
    assert refused > 5
    with pytest.raises(BadLineError):
        entry_of(json.dumps(true | {"more": 1}))


@pytest.mark.parametrize(
    "fields",
    [{}, {"shards": "0:0", "rest": 6}, {"shards": "0:0", "start": 1}, {"shards": "0:0", "sequences": 0}, {"start": 3}],
)
def test_deal_has_shards_or_is_the_rest_of_one(fields: dict[str, Any]) -> None:
    true = {"kind": "deal", "index": 9, "prev": "0" * 64, "term": 0, "site": "a", "sequences": 1}
    with pytest.raises(BadLineError):
        entry_of(json.dumps(true | fields))


@pytest.mark.parametrize("seed", range(20))
def test_cut_of_a_line_loses_and_doubles_nothing(seed: int) -> None:
    rng = random.Random(seed)
    line = tuple(Piece(deal, rng.randrange(5), rng.randint(1, 6)) for deal in range(rng.randrange(6)))
    for at in range(length(line) + 3):
        before, rest = cut(line, at)
        assert length(before) == min(at, length(line))
        read = [(one.deal, one.start + i) for part in (before, rest) for one in part for i in range(one.sequences)]
        assert read == [(one.deal, one.start + i) for one in line for i in range(one.sequences)]


def keep_snapshot(state: RunState) -> None:
    taken = put(state, Snapshot, versions=tuple(state.versions), state=state.digest)
    put(state, Kept, snapshot=taken.index, digest="8" * 32, sites=("a",))


SHARDS = 40
"""Of the data set that `trained` reads in passes."""


def trained(deals: int) -> tuple[RunState, list[str]]:
    """A run of two fragments whose site a has read and counted so many deals, with a snapshot after each fifth, and
    what the text of all deals was; site b has read one, and is away."""
    state, said = begun(fragments=2), list[str]()
    version(state)
    put(state, Deal, site="b", shards="7:0", sequences=6)
    read_until(state, "b", 20)
    put(state, Away, site="b", why="cut")
    for number in range(deals):
        said.append(text_of([(0, number * 8 % SHARDS + one) for one in range(8)]))
        put(state, Deal, site="a", shards=said[-1], sequences=8)
        for fragment in range(2):
            read_until(state, "a", 80 * number, fragment)
        if number % 5 == 4:
            keep_snapshot(state)
    return state, said


def times_of(counts: DealtCounts) -> dict[tuple[int, int], int]:
    return {(part, number): times for part, number, times in counted(counts)}


def test_state_of_a_long_run_has_few_deals_and_knows_how_often_each_shard_was_dealt() -> None:
    state, said = trained(400)
    assert len(state.deals) < 20
    assert len(state.text) < 2 * len(trained(40)[0].text)
    every = Counter(shard for text in said for shard in shards_of(text))
    known = Counter(times_of(state.dealt[min(state.data)]))
    known.update(shard for deal in state.deals.values() for shard in shards_of(deal.shards) if shard[0] == 0)
    assert known == every
    assert state.sites["b"].line  # it counts in one fragment alone
    assert RunState.read(state.text).text == state.text


def test_site_goes_on_where_it_was_after_its_first_deals_are_forgotten() -> None:
    state, said = trained(50)
    assert (state.position("a"), state.left("a"), state.line_ends("a")) == (8 * 49, 8, 400)
    (last,) = own_deals(state, "a", state.position("a"))
    assert (last.at, last.sequences, last.shards) == (8 * 49, 8, said[-1])
    read_until(state, "a", 80 * 49 + 30, 0)
    read_until(state, "a", 80 * 49 + 30, 1)
    put(state, Away, site="a", why="cut")
    take_back(state, "a")
    assert (state.left("a"), state.rests[-1].start, state.rests[-1].sequences) == (0, 3, 5)


def test_rounds_that_become_void_do_not_bring_back_what_is_forgotten() -> None:
    state, _ = trained(50)
    for fragment in range(2):
        for at in reversed(range(state.versions[fragment])):
            put(state, Skip, fragment=fragment, version=at, why="lost")
    begins = state.line_begins("a")
    assert begins > 0
    assert state.position("a") == begins
    first = next(own_deals(state, "a", begins))
    assert first.at == begins


def test_state_that_is_given_tells_a_forgotten_beginning_from_a_line_that_was_taken_back() -> None:
    before, _ = trained(30)
    after, _ = trained(60)
    assert after.line_begins("a") > before.line_begins("a")
    assert begins_with(after, before, "a")
    put(before, Away, site="a", why="cut")
    back = RunState.read(before.text)
    take_back(back, "a")
    put(back, Join, site="a", store=STORES["a"])
    put(back, Ready, site="a")
    put(back, Deal, site="a", shards="9:9", sequences=8)
    assert not begins_with(back, before, "a")


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), max_size=80))
def test_counts_are_those_of_the_shards_one_by_one_in_any_order(shards: list[tuple[int, int]]) -> None:
    forward, backward = DealtCounts(), DealtCounts()
    for one in shards:
        count(forward, text_of([one]))
    for one in reversed(shards):
        count(backward, text_of([one]))
    assert forward == backward
    assert times_of(forward) == Counter(shards)
