"""What an agent makes of what its leader says: of many entries at once, and of a state in the place of those which the
site lacks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from geocomm.data.deal_records import SiteDeal
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.files.snapshots import Snapshots
from geocomm.elastic.journal.entries import Away, BadLineError, Data, Deal, Entry, Ready, TermBegun
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.message_lines import parts_of
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.site.own_journal import OwnJournal, _parts_from
from support.led_sequencer import Led


def led_on(entries: Sequence[Entry], more: int) -> list[Entry]:
    """What a leader adds that leads alone: sites come and go."""
    found = list(entries)
    state = RunState.of(found)
    for number in range(more):
        kind = Away if number % 2 == 0 else Ready
        given: dict[str, Any] = {"why": "cut off"} if kind is Away else {}
        entry = kind(index=state.head.index + 1, prev=state.head.hash, term=state.term, site="b", **given)
        state.apply(entry)
        found.append(entry)
    return found


@pytest.mark.parametrize("alone", [2, 40])
@pytest.mark.parametrize("later", [True, False])
def test_former_leader_that_led_alone_takes_the_state_of_a_later_term_though_it_has_more_entries(
    tmp_path: Path, alone: int, *, later: bool
) -> None:
    common = Led().take_part("ab").entries
    own = led_on(common, alone)
    others = SqliteJournal(tmp_path / "others")
    others.append_all(common, others.head)
    if later:
        others.append(others.term_begun(1, "b", "b:1"), others.head)
    said, told = others.state(), list[str]()
    others.close()

    async def run(journal: SqliteJournal) -> None:
        state = journal.state()
        store = FragmentStore(tmp_path / "run")
        store.write_state(0, 7, [b"of the entries that it wrote alone"])
        ranks = SimpleNamespace(end_those_with=lambda first, why: asyncio.sleep(0))
        view: Any = SimpleNamespace(
            site="a",
            journal=journal,
            state=state,
            store=store,
            leader_at="b:1",
            welcome=SimpleNamespace(run=said.genesis and said.genesis.run, head=said.head.index, term=said.term),
            leave_leader=lambda: None,
            life=SimpleNamespace(start=asyncio.ensure_future, start_again=told.append),
        )
        taking = OwnJournal(view, ranks, Snapshots(store), lambda entry, deal: None, lambda: None)  # type: ignore[arg-type]
        for part in parts_of(said):
            taking.take_part(part)
        async with asyncio.timeout(20):
            while not told:
                await asyncio.sleep(0.001)
        assert journal.head == journal.base == said.head
        assert store.states(0) == []

    with contextlib.closing(SqliteJournal(tmp_path / "own")) as journal:
        journal.append_all(own, journal.head)
        if later:
            asyncio.run(run(journal))
            assert "has given the state of the run" in told[0]
        else:  # of its own term, less than it has: that is an older copy
            with pytest.raises(BadLineError, match="does not follow"):
                asyncio.run(run(journal))
            assert journal.head.index == len(own) - 1


@pytest.mark.parametrize("at_once", [1, 5])
def test_each_deal_is_told_though_later_ones_come_with_it(tmp_path: Path, at_once: int) -> None:
    before = Led().take_part("ab").entries
    state, entries, told = RunState.of(before), list[Entry](), list[SiteDeal | None]()

    def put(kind: Any, **given: Any) -> None:
        entries.append(kind(index=state.head.index + 1, prev=state.head.hash, term=state.term, **given))
        state.apply(entries[-1])

    put(Data, set="cat", number=1, sha256="7" * 64, sequence_length=10, held_out_every=0)
    for number, (site, sequences) in enumerate([("a", 5), ("a", 6), ("b", 2), ("a", 7)]):
        put(Deal, site=site, shards=f"0:{number}", sequences=sequences)
    with contextlib.closing(SqliteJournal(tmp_path / "own")) as journal:
        journal.append_all(before, journal.head)
        view: Any = SimpleNamespace(site="a", journal=journal, state=journal.state(), store=None, welcome=None)
        others: Any = None
        taking = OwnJournal(view, others, others, lambda entry, deal: told.append(deal), lambda: None)
        while entries:
            taking.take_now(entries[:at_once])
            del entries[:at_once]
    assert [deal and (deal.at, deal.sequences) for deal in told] == [None, (0, 5), (5, 6), None, (11, 7)]


def test_what_a_journal_has_of_another_leader_is_no_part_of_the_run_though_both_began_the_same_term() -> None:
    """As two sites may that were promoted with --force and did not hear of each other."""
    common = Led().take_part("ab").entries

    def of(*leaders: tuple[int, str]) -> RunState:
        state = RunState.of(common)
        for term, site in leaders:
            begun = TermBegun(index=state.head.index + 1, prev=state.head.hash, term=term, site=site, address="h:1")
            state.apply(begun)
            away = Away(index=state.head.index + 1, prev=state.head.hash, term=term, site="b", why="cut off")
            state.apply(away)
            state.apply(Ready(index=state.head.index + 1, prev=state.head.hash, term=term, site="b"))
        return state

    fork = len(common)
    assert _parts_from(of((2, "a")), of()) is None
    assert _parts_from(of((2, "a"), (4, "a")), of((1, "a"))) == fork
    assert _parts_from(of((2, "a")), of((2, "b"))) == fork
    assert _parts_from(of((2, "a"), (4, "a")), of((2, "b"))) == fork
    assert _parts_from(of((1, "a"), (3, "b")), of((1, "a"))) is None
    assert _parts_from(of((1, "a"), (3, "a")), of((1, "a"), (2, "b"))) == fork + 3
