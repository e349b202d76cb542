"""Which agents are asked: for states at first those last known, then those whom the leader hears; for a frame those
too that have left since its round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from geocomm.core.addresses import Address
from geocomm.elastic.files.fetch import Fetcher
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.files.known_agents import KnownAgents
from geocomm.elastic.journal.entries import AnyRound, Entry, Left
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.messages import Wanted
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.leading.agent_link import LeaderLink
from geocomm.elastic.site.run_view import AgentLife, RunView
from support.hub_support import make_keys
from support.local_jobs import free_port
from support.made_entries import made_entries


def ignore(*_: object) -> None:
    pass


@pytest.fixture
def known(tmp_path: Path) -> KnownAgents:
    return KnownAgents(tmp_path, ignore)


def of_a_run(tmp_path: Path, known: KnownAgents) -> tuple[RunState, SqliteJournal, Callable[[], RunView]]:
    """State and journal of a run, and its view at site a, to be made in a loop."""
    entries = made_entries(2)
    state, journal = RunState.of(entries), SqliteJournal(tmp_path / "journal")
    journal.append_all(entries, journal.head)
    keys = make_keys(tmp_path / "keys", "a")["a"]
    hub = f"127.0.0.1:{free_port()}"  # nobody leads there: then all that were ever known may be there
    link = LeaderLink(Address.parse(hub), keys, str, ignore, lambda: None, ignore)
    store = FragmentStore(tmp_path / "run")
    fetcher = Fetcher(store, keys, ignore)
    return (
        state,
        journal,
        lambda: RunView("a", hub, keys, store, state, journal, known, None, link, fetcher, AgentLife()),
    )


def test_the_leader_is_asked_only_once_those_last_known_had_nothing(tmp_path: Path, known: KnownAgents) -> None:
    _, _, view = of_a_run(tmp_path, known)

    async def asked(times: int) -> list[list[str]]:
        holders = view().holders()
        return [await holders() for _ in range(times)]

    known.learn("gone", "192.0.2.9:1")
    assert asyncio.run(asked(1)) == [["192.0.2.9:1"]]
    known.learn("b", "192.0.2.7:1")
    known.learn("a", "192.0.2.8:1")
    both = sorted(["192.0.2.9:1", "192.0.2.7:1"])
    first, *later = asyncio.run(asked(3))
    assert first == ["192.0.2.7:1"]
    assert [sorted(addresses) for addresses in later] == [both, both]


def test_a_site_that_has_left_is_asked_for_frames_of_rounds_before_that_whoever_has_made_them(
    tmp_path: Path, known: KnownAgents
) -> None:
    state, journal, view = of_a_run(tmp_path, known)
    for site in "abc":
        known.learn(site, f"{site}:1")

    def add(entry: Entry) -> None:
        journal.append_all([entry], journal.head)
        state.apply(entry)

    def of_last_round() -> Wanted:
        entry = max(state.rounds.values(), key=lambda one: one.index)
        [made] = [one for one in entry.frames if one.site == "b"]
        return Wanted.listed(entry, made)

    async def asked(wanted: Wanted) -> list[str]:
        return view().last_known(wanted)

    last = next(entry for entry in reversed([*journal.read()]) if isinstance(entry, AnyRound))
    before = of_last_round()
    add(Left(index=journal.head.index + 1, prev=journal.head.hash, term=state.term, site="c"))
    assert asyncio.run(asked(before)) == ["b:1", "c:1"]
    next_round = {"index": journal.head.index + 1, "prev": journal.head.hash, "version": state.versions[last.fragment]}
    members = tuple(one for one in last.members if one.site != "c")
    add(last.model_copy(update=next_round | {"members": members, "base": None}))
    assert asyncio.run(asked(of_last_round())) == ["b:1"]
