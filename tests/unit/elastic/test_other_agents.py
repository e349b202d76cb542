"""Which agents are asked for states: at first those last known, then those whom the leader hears."""

from __future__ import annotations

import asyncio
from pathlib import Path

from geocomm.core.addresses import Address
from geocomm.elastic.files.fetch import Fetcher
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.files.known_agents import KnownAgents
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.leading.agent_link import LeaderLink
from geocomm.elastic.site.run_view import AgentLife, RunView
from support.hub_support import make_keys
from support.local_jobs import free_port
from support.made_entries import made_entries


def ignore(*_: object) -> None:
    pass


def test_the_leader_is_asked_only_once_those_last_known_had_nothing(tmp_path: Path) -> None:
    state = RunState()
    for entry in made_entries(2):
        state.apply(entry)
    own, other, *_ = state.live
    keys = make_keys(tmp_path / "keys", "a")["a"]
    known = KnownAgents(tmp_path, ignore)
    hub = f"127.0.0.1:{free_port()}"  # nobody leads there: then all that were ever known may be there
    link = LeaderLink(Address.parse(hub), keys, str, ignore, lambda: None, ignore)
    store, journal = FragmentStore(tmp_path / "run"), SqliteJournal(tmp_path / "journal")
    fetcher = Fetcher(store, keys, ignore)

    async def asked(times: int) -> list[list[str]]:
        view = RunView(own, hub, keys, store, state, journal, known, None, link, fetcher, AgentLife())
        holders = view.holders()
        return [await holders() for _ in range(times)]

    known.learn("gone", "192.0.2.9:1")
    assert asyncio.run(asked(1)) == [["192.0.2.9:1"]]
    known.learn(other, "192.0.2.7:1")
    known.learn(own, "192.0.2.8:1")
    both = sorted(["192.0.2.9:1", "192.0.2.7:1"])
    first, *later = asyncio.run(asked(3))
    assert first == ["192.0.2.7:1"]
    assert [sorted(addresses) for addresses in later] == [both, both]
