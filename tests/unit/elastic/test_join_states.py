"""From which version a rank that comes back replays, and when a newer state of others is asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from typing_extensions import override

from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.journal.entries import Round
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.messages import Down, EntrySaid, RankWelcome
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.site.join_states import FEW_ROUNDS, StatesOfOthers
from geocomm.elastic.site.rank_socket import RankConnection
from geocomm.elastic.site.run_view import RunView
from geocomm.elastic.site.site_ranks import SiteRanks, _Rank
from support.made_entries import made_entries

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
    entries = made_entries()
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


def test_an_own_state_that_the_disk_has_changed_is_not_begun_with_though_the_journal_says_nothing_of_it(
    tmp_path: Path,
) -> None:
    store = FragmentStore(tmp_path / "run")
    for version in (4, 5):
        store.write_state(FRAGMENT, version, [bytes(100)])
    store.state_path(FRAGMENT, 5).write_bytes(bytes(99) + b"x")
    state = SimpleNamespace(versions=[6], skipped_at={}, skipped=set(), genesis=None)
    journal = SimpleNamespace(first_round=lambda fragment: 0, rounds=lambda fragment, version: iter(()))
    states = StatesOfOthers(cast(RunView, SimpleNamespace(state=state, store=store, journal=journal)))
    assert asyncio.run(states.own(FRAGMENT)) == 4
    assert store.states(FRAGMENT) == [4]


class LateStates(StatesOfOthers):
    """The journal lets go of rounds while a rank's base is looked for."""

    def __init__(self, view: RunView, before: int) -> None:
        super().__init__(view)
        self._before, self._asked = before, 0

    @override
    async def base(self, fragment: int, *_: object, **__: object) -> tuple[int, bool]:
        self._asked += 1
        if self._asked > 1:
            return self._view.state.versions[fragment], True
        self._view.journal.forget(self._before)
        return 0, False


def test_a_rank_is_told_all_rounds_from_its_base_though_the_journal_lets_go_of_some_meanwhile(tmp_path: Path) -> None:
    journal, state, told = SqliteJournal(tmp_path / "journal"), RunState(), list[Down]()
    for entry in made_entries():
        journal.append(entry, journal.head)
        state.apply(entry)
    journal.keep(state, always=True)
    last = max(one.index for one in journal.read() if isinstance(one, Round) and one.fragment == FRAGMENT)
    site = next(iter(state.sites))
    view = SimpleNamespace(site=site, state=state, journal=journal, store=None, is_current=True, is_member=True)
    view.opens, view.leader, view.leader_at = {}, None, "h:1"
    view.known, view.holders, view.say = SimpleNamespace(addresses={}), lambda: None, lambda _: None
    ranks = SiteRanks(cast(RunView, view), LateStates(cast(RunView, view), last + 1))
    hello = SimpleNamespace(place=0, owners=1, trains=False, digests={FRAGMENT: "0" * 32})
    connection = cast(RankConnection, SimpleNamespace(hello=hello, say=told.append))
    ranks._ranks[0] = _Rank(connection, {FRAGMENT: 0})
    asyncio.run(ranks._prepare_and_welcome())
    welcome = next(one for one in told if isinstance(one, RankWelcome))
    rounds = [one.entry.version for one in told if isinstance(one, EntrySaid) and isinstance(one.entry, Round)]
    assert rounds == list(range(welcome.states.get(FRAGMENT, 0), state.versions[FRAGMENT]))
