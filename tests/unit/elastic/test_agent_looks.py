"""What an agent finds in its journal and on its disk, though the word of it came while there was no agent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from geocomm.core.addresses import Address
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.files.known_agents import KnownAgents
from geocomm.elastic.files.snapshots import Snapshots
from geocomm.elastic.journal.entries import Entry, Left, Snapshot
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.message_lines import up_of
from geocomm.elastic.journal.messages import SnapshotHeld, Welcome
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.site import agent as agent_module
from geocomm.elastic.site.agent import Agent
from geocomm.elastic.site.run_view import AgentEnded
from support.hub_support import make_keys
from support.made_entries import made_entries


@contextlib.contextmanager
def agent_of(tmp_path: Path, site: str, entries: Sequence[Entry]) -> Generator[Agent]:
    """That of a site whose journal has these entries."""
    keys, known = make_keys(tmp_path / "keys", site)[site], KnownAgents(tmp_path, lambda _: None)
    with contextlib.closing(SqliteJournal(tmp_path / "journal")) as journal:
        journal.append_all(entries, journal.head)
        store, state = FragmentStore(tmp_path / "run"), journal.state()
        at = Address("127.0.0.1", 1)
        yield Agent(str(at), known, keys, store, journal, state, at, None, ranks=True, passes_on=False)


def test_an_agent_that_is_to_leave_ends_in_order_where_the_one_before_it_had_heard_that_the_site_has_left(
    tmp_path: Path,
) -> None:
    """It died while it gave out the site's last frames: this one goes on with that, and does not wait to be heard."""
    entries = [*made_entries(2)]
    head, term = RunState.of(entries).head, entries[-1].term
    entries.append(Left(index=head.index + 1, prev=head.hash, term=term, site="b"))

    async def leave() -> None:
        with agent_of(tmp_path, "b", entries) as agent:
            agent.leave()
            assert agent.left.is_set()
            assert agent.others
            with pytest.raises(AgentEnded) as ended:
                await agent.life.ended
            assert not ended.value.refused

    asyncio.run(leave())


def test_a_snapshot_whose_states_ranks_have_written_while_there_was_no_agent_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader hears of it once from each agent, and at each connection."""
    monkeypatch.setattr(agent_module, "_SNAPSHOT_LOOK_S", 0.01)
    entries = [*made_entries()]
    last = max(place for place, entry in enumerate(entries) if isinstance(entry, Snapshot))
    entries, snapshot, said = entries[: last + 1], entries[last], list[str]()
    assert isinstance(snapshot, Snapshot)

    async def look() -> None:
        with agent_of(tmp_path, "b", entries) as agent:
            view = agent._view
            state, genesis = view.state, view.state.genesis
            assert genesis is not None
            monkeypatch.setattr(view.link, "say", said.append)
            looking = agent.life.start(agent._hold_snapshots())
            for times in (1, 2):
                view.welcome = Welcome(term=state.term, run=genesis.run, head=state.head.index + times, open=())
                view.is_current = True
                if times == 1:
                    await asyncio.sleep(0.1)
                    assert not said
                    for fragment, version in enumerate(snapshot.versions):
                        view.store.write_state(fragment, version, [b"state"])
                        Snapshots(view.store).keep_state(snapshot.index, fragment, version)
                async with asyncio.timeout(20):
                    while len(said) < times:
                        await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                assert len(said) == times
            looking.cancel()

    asyncio.run(look())
    held = up_of(said[0].encode())
    assert isinstance(held, SnapshotHeld)
    assert held.snapshot == snapshot.index
