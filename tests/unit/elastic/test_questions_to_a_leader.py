"""What a leader says to who asks it for its sites, or to remove one."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.known_agents import KnownAgents
from geocomm.elastic.journal.entries import Removed
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.messages import RanksGone, ReadySaid
from geocomm.elastic.journal.sequencer_events import Came, Ended, LeaderSettings
from geocomm.elastic.leading.leader import Leader
from geocomm.elastic.leading.questions import MembersAsked, RemovalAsked, answer_of
from support.led_sequencer import Led


def test_site_that_leads_is_not_removed_before_another_one_is_promoted(tmp_path: Path) -> None:
    async def ask(journal: SqliteJournal) -> None:
        leader = Leader(journal, LeaderSettings(), "a:1", KnownAgents(tmp_path, print), print)
        own = answer_of(leader, "a", RemovalAsked(site="a", why="broken"))
        assert "promote another one first" in own.problem
        assert len([*journal.read()]) == len(entries)
        assert not answer_of(leader, "a", RemovalAsked(site="b", why="broken")).problem
        assert isinstance([*journal.read()][-1], Removed)

    entries = Led().take_part("ab").entries
    with contextlib.closing(SqliteJournal(RunDir(tmp_path).journal)) as journal:
        journal.append_all(entries, journal.head)
        asyncio.run(ask(journal))


def test_site_that_is_connected_and_not_ready_is_told_with_what_it_waits_for() -> None:
    led = Led().take_part("ab")

    def waits() -> str:
        return led.sequencer.sites["b"].waits(led.sequencer.state.sites["b"].standing)

    assert not waits()
    led.say("b", RanksGone(why="its run folder takes no frames"))
    assert waits() == "its run folder takes no frames"
    led.on(Ended("b"))
    assert not waits()  # nobody knows
    led.hello("b")
    assert waits() == "its ranks start"
    led.ranks_up("b")
    assert waits() == "its ranks catch up with the run"
    led.say("b", ReadySaid())
    assert not waits()


def test_site_that_has_just_been_heard_was_not_heard_since_the_machine_began(tmp_path: Path) -> None:
    async def ask(journal: SqliteJournal) -> None:
        leader = Leader(journal, LeaderSettings(), "a:1", KnownAgents(tmp_path, print), print)
        leader.sequencer.on(Came("b"), leader.seconds())
        asyncio.get_running_loop().time = lambda: 1e6  # a machine that has been up for days
        (seen,) = answer_of(leader, "a", MembersAsked()).sites
        assert seen.site == "b"
        assert seen.heard_s < 60

    with contextlib.closing(SqliteJournal(RunDir(tmp_path).journal)) as journal:
        entries = Led().take_part("ab").entries
        journal.append_all(entries, journal.head)
        asyncio.run(ask(journal))
