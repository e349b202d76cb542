"""From which version a rank that comes back replays, and when a newer state of others is asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from geocomm.elastic.fragment_store import FragmentStore
from geocomm.elastic.join_states import FEW_ROUNDS, StatesOfOthers
from geocomm.elastic.journal.entries import Round
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.run_view import RunView
from support.journal.simulated_run import SimulatedRun

FRAGMENT = 0


class Asked(Exception):
    """Others were asked for a state."""


async def others() -> list[str]:
    raise Asked


def base_of(state: RunState, store: FragmentStore, journal: SqliteJournal) -> tuple[int, bool]:
    states = StatesOfOthers(cast(RunView, SimpleNamespace(state=state, store=store, journal=journal)))
    return asyncio.run(states.base(FRAGMENT, 0, "0" * 32, others, joining=False))


@pytest.mark.parametrize("room", ["more than the frames", "less than the frames"])
def test_frames_that_are_missing_are_fetched_unless_a_state_has_fewer_bytes(tmp_path: Path, room: str) -> None:
    entries = SimulatedRun(3, reduce="all").run().entries
    journal, state = SqliteJournal(tmp_path / "journal"), RunState()
    for entry in entries:
        journal.append(entry, journal.head)
        state.apply(entry)
    rounds = [one for one in entries if isinstance(one, Round) and one.fragment == FRAGMENT]
    few = state.versions[FRAGMENT] - FEW_ROUNDS
    since = max(one.version for one in rounds if one.version < few and one.base is None)  # any bits are right
    lacking = [one for one in rounds if one.version >= since]
    assert since > 0
    assert len(lacking) > FEW_ROUNDS
    size = sum(listed.coded_bytes + listed.exact_bytes for entry in lacking for listed in entry.members)
    store = FragmentStore(tmp_path / "run")
    content = bytes(size) if room == "more than the frames" else bytes(size // 2)
    store.write_state(FRAGMENT, since, [content])
    found = store.latest_state(FRAGMENT)
    assert found == since
    if room == "more than the frames":
        assert base_of(state, store, journal) == (since, True)
    else:
        with pytest.raises(Asked):
            base_of(state, store, journal)
