"""What a journal says, and which entries do not fit it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from geocomm.core.records import line_of
from geocomm.elastic.journal.entries import (
    Away,
    BadLineError,
    End,
    Entry,
    Genesis,
    Join,
    Left,
    Listed,
    Ready,
    Removed,
    Round,
    Skip,
    TermBegun,
    entry_of,
)
from geocomm.elastic.journal.message_lines import said
from geocomm.elastic.journal.messages import EntrySaid
from geocomm.elastic.journal.run_state import RunState, Standing
from support.made_entries import made_entries

FRAME = Listed(site="a", frame="a" * 64, coded_bytes=1, exact_bytes=0, weight=7, step=30, squared_norm=1.0, lr=0.1)


def put(state: RunState, kind: Any, **fields: Any) -> Entry:
    head = state.head
    entry: Entry = kind(**{"index": head.index + 1, "prev": head.hash, "term": state.term, **fields})
    state.apply(entry)
    return entry


def begun() -> RunState:
    state = RunState()
    put(state, Genesis, run="1" * 32, settings={}, layout="3" * 32, digests=("4" * 32,), every=10)
    put(state, Join, site="a", store="5" * 32)
    put(state, Ready, site="a")
    return state


def a_round(state: RunState, **fields: Any) -> None:
    version = state.versions[0]
    put(state, Round, **{"fragment": 0, "version": version, "members": (FRAME,), "every": 0, "base": None, **fields})


def test_an_entry_has_one_line_and_its_copy_with_other_values_another() -> None:
    entry = put(RunState(), Genesis, run="1" * 32, settings={}, layout="3" * 32, digests=("4" * 32,), every=10)
    assert entry.line == line_of(entry)
    assert said(EntrySaid(entry=entry)) == line_of(EntrySaid(entry=entry))
    copied = entry.model_copy(update={"term": 1})
    assert copied.line == line_of(copied) != entry.line
    assert copied.hash == hashlib.sha256(copied.line.encode()).hexdigest() != entry.hash
    assert copied != entry == entry_of(entry.line)


def test_state_is_what_the_entries_say() -> None:
    state = begun()
    a_round(state, every=20)
    a_round(state, base="6" * 32)
    assert (state.versions, state.every, state.step, state.live) == ([2], 20, 30, ["a"])
    assert (state.sites["a"].rounds, state.sites["a"].weight) == (2, 14)
    assert state.base(0, 1) == "6" * 32
    put(state, Skip, fragment=0, version=0, why="lost")
    assert state.base(0, 1) is None  # was said of a state that is another one now
    assert state.to_skip(0, 0) == [1]
    put(state, Away, site="a", why="cut")
    assert state.sites["a"].standing is Standing.AWAY
    put(state, TermBegun, term=2, site="a", address="a:1")
    assert (state.term, state.terms) == (2, {2: state.head.index})
    assert state.taken_over is not None
    assert (state.taken_over.site, state.taken_over.address) == ("a", "a:1")


MISFITS = [
    (Ready, {"site": "a"}),
    (Ready, {"site": "b"}),
    (Left, {"site": "b"}),
    (Join, {"site": "a", "store": "5" * 32, "index": 9}),
    (Join, {"site": "a", "store": "5" * 32, "prev": "0" * 64}),
    (Round, {"fragment": 0, "version": 1, "members": (FRAME,), "every": 0, "base": None}),
    (Round, {"fragment": 1, "version": 0, "members": (FRAME,), "every": 0, "base": None}),
    (Round, {"fragment": 0, "version": 0, "members": (FRAME, FRAME), "every": 0, "base": None}),
    (
        Round,
        {
            "fragment": 0,
            "version": 0,
            "members": (FRAME.model_copy(update={"site": "z"}),),
            "every": 0,
            "base": None,
        },
    ),
    (Skip, {"fragment": 0, "version": 0, "why": "lost"}),
    (TermBegun, {"term": 0, "site": "a", "address": "a:1"}),
]


@pytest.mark.parametrize(("kind", "fields"), MISFITS)
def test_entry_that_does_not_fit_is_refused_and_changes_nothing(kind: Any, fields: dict[str, Any]) -> None:
    state = begun()
    with pytest.raises(BadLineError):
        put(state, kind, **fields)
    assert vars(state) == vars(begun())


def test_removed_site_and_ended_run_take_no_more_entries() -> None:
    state = begun()
    put(state, Removed, site="a", why="told so")
    with pytest.raises(BadLineError):
        put(state, Join, site="a", store="5" * 32)
    put(state, End)
    with pytest.raises(BadLineError):
        put(state, Join, site="b", store="5" * 32)
    lower = begun()
    put(lower, TermBegun, term=3, site="a", address="a:1")
    with pytest.raises(BadLineError):
        put(lower, Away, site="a", why="cut", term=2)


def test_state_after_a_part_and_the_rest_is_the_state_after_all() -> None:
    entries = made_entries()
    for cut in (1, len(entries) // 2, len(entries) - 1):
        state = RunState.of(entries[:cut])
        for entry in entries[cut:]:
            state.apply(entry)
        assert vars(state) == vars(RunState.of(entries))


def with_fragments(count: int) -> RunState:
    state = RunState()
    put(state, Genesis, run="1" * 32, settings={}, layout="3" * 32, digests=("4" * 32,) * count, every=10)
    put(state, Join, site="a", store="5" * 32)
    return state


def read_until(state: RunState, fragment: int, tokens: int) -> None:
    frame = FRAME.model_copy(update={"taken": tokens})
    version = state.versions[fragment]
    put(state, Round, fragment=fragment, version=version, members=(frame,), every=0, base=None)


def test_site_reads_on_from_the_fragment_that_has_least_of_its_data() -> None:
    state = with_fragments(2)
    read_until(state, 0, 100)
    assert state.sites["a"].taken == 0
    read_until(state, 1, 40)
    assert state.sites["a"].taken == 40
    read_until(state, 1, 70)
    read_until(state, 0, 90)  # after a restart: this fragment has more
    assert state.sites["a"].taken == 70
    read_until(state, 1, 200)
    assert state.sites["a"].taken == 100
    assert RunState.read(state.text).sites["a"].taken == 100


def test_void_rounds_take_back_what_they_counted() -> None:
    state = with_fragments(1)
    for tokens in (10, 20, 30):
        read_until(state, 0, tokens)
    for version in state.to_skip(0, 1):
        put(state, Skip, fragment=0, version=version, why="lost")
    assert state.sites["a"].taken == 10
    read_until(state, 0, 25)
    assert state.sites["a"].taken == 25


def test_who_has_heard_of_some_of_several_void_rounds_alone_counts_none_that_follows_a_void_one() -> None:
    state = with_fragments(1)
    for tokens in range(10, 60, 10):
        read_until(state, 0, tokens)
    for version in state.to_skip(0, 2):
        put(state, Skip, fragment=0, version=version, why="lost")
        counts = [at for at in range(5) if (0, at) not in state.skipped]
        assert counts == list(range(len(counts)))
    assert counts == [0, 1]


@pytest.mark.parametrize("back", [1, 2, 3, 10, 100, 900])
def test_long_run_remembers_few_rounds_of_a_site_and_takes_back_too_much_rather_than_too_little(back: int) -> None:
    state = with_fragments(1)
    for version in range(1000):
        read_until(state, 0, version + 1)
    assert len(state.sites["a"].read[0]) <= 22  # two for each doubling
    for version in state.to_skip(0, 1000 - back):
        put(state, Skip, fragment=0, version=version, why="lost")
    assert 1000 - 3 * back <= state.sites["a"].taken <= 1000 - back


def test_state_whose_site_has_other_fragments_than_the_run_is_refused() -> None:
    state = with_fragments(2)
    state.sites["a"] = replace(state.sites["a"], read=())
    with pytest.raises(BadLineError, match="fragments"):
        RunState.read(state.text)
