"""Whose place a site's is, and whose run: a second machine of a name, and a leader that has lost its folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from geocomm.core.addresses import Address
from geocomm.core.records import line_of
from geocomm.elastic.files.known_agents import KnownAgents, about
from geocomm.elastic.journal.entries import Away, Genesis
from geocomm.elastic.journal.messages import PROTOCOL_VERSION, Hello
from geocomm.elastic.leading.questions import AgentStanding, StandingAsked, ask
from geocomm.wire.dial import dial
from geocomm.wire.greeting import Greeting, Purpose
from support.elastic_sites import LIMIT_S, ElasticSite, ElasticSites, members
from support.hub_support import make_keys
from support.local_jobs import free_port

pytestmark = pytest.mark.timeout(400)


def test_a_second_machine_of_a_name_ends_and_the_first_counts_on(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "ab")) as sites:
        a, b = sites.values()
        sites.start()
        second = replace(
            b, folder=tmp_path / "second", listen=f"127.0.0.1:{free_port()}", agent=None, rank=None, logs=[]
        )
        second.start_agent()
        assert second.agent is not None
        try:
            assert second.agent.wait(LIMIT_S) == 2
        finally:
            second.end()
        assert "two machines call themselves b" in second.text()
        counted = a.listed("b")
        sites.until(lambda: a.listed("b") >= counted + 2, "the first machine counts on")
        assert a.state().sites["b"].store == b.state().sites["b"].store
        # It may be silent on a busy machine. The other machine has not taken its place.
        assert not any(isinstance(entry, Away) and "run folder" in entry.why for entry in a.entries())


def test_a_leader_that_lost_its_folder_begins_no_run_beside_that_of_the_others(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), wait_for=("a", "b", "c")) as sites:
        a, b, c = sites.values()
        sites.start()
        a.kill_agent()
        a.kill_rank()
        shutil.rmtree(a.folder)
        a.folder.mkdir()
        a.wait_for = ()

        a.start_agent()
        sites.until(
            lambda: "has the journal of run" in about(a.folder).doubt, "the leader that lost its folder is in doubt"
        )
        a.start_rank()
        before = len(b.rounds())
        assert members("promote", b).returncode == 0
        sites.until(lambda: len(b.rounds()) >= before + 2, "rounds under the new leader")
        counted = b.listed("a")
        sites.until(lambda: b.listed("a") >= counted + 2, "the former leader joins, with its empty folder")
        assert sum(isinstance(entry, Genesis) for entry in a.entries()) == 1
        assert [entry for entry in a.entries() if isinstance(entry, Genesis)] == [
            entry for entry in c.entries() if isinstance(entry, Genesis)
        ]
        sites.until(lambda: about(a.folder).doubt == "", "the doubt is over")
        assert a.text().count("promote") == 2  # one line for each of the two sites


def test_two_leaders_of_one_term_become_one(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), wait_for=("a", "b", "c")) as sites:
        a, b, c = sites.values()
        sites.start()
        a.kill_agent()
        a.kill_rank()
        with contextlib.ExitStack() as first_pause:
            first_pause.enter_context(c.paused())
            assert members("promote", b, "--force").returncode == 0
            sites.until(lambda: b.state().term == 2, "b leads")
            with b.paused():  # before c goes on: it would follow b
                first_pause.close()
                assert members("promote", c, "--force").returncode == 0
                sites.until(lambda: c.state().term == 2, "c leads")

        sites.until(lambda: b.state().term == c.state().term == 4, "both are of a later term")
        assert about(b.folder).leader == about(c.folder).leader
        both = [[entry.hash for entry in one.entries()] for one in (b, c)]
        assert len({tuple(entries[: min(map(len, both))]) for entries in both}) == 1
        assert any("may not be the only one that leads" in one.text() for one in (b, c))


def test_a_term_of_which_no_leader_says_that_it_is_its_own_is_not_believed(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys", "abcd")
    with ElasticSites(tmp_path, keys, wait_for=("a", "b", "c")) as sites:
        a, b, c, liar = sites.values()
        sites.start_all((a, b, c))
        genesis = a.state().genesis
        assert genesis is not None

        async def lie(to: ElasticSite, term: int, leader: str) -> AgentStanding:
            asked = StandingAsked(run=genesis.run, term=term, leader=leader)
            return await ask(Address.parse(to.listen), keys["d"], asked, AgentStanding)

        async def say_that_another_leads() -> str:
            hello = Hello(
                protocol=PROTOCOL_VERSION,
                geocomm="0",
                store="d" * 32,
                run=genesis.run,
                head=5,
                head_hash="d" * 64,
                term=2**62,
                fetch="127.0.0.1:1",
            )
            stream, _ = await dial(Address.parse(a.listen), keys["d"], Greeting(Purpose.RUN, bytes(16), 0, "run"))
            with contextlib.closing(stream):
                await stream.write(line_of(hello).encode() + b"\n")
                return (await stream.read_line(1 << 20)).decode()

        before = len(a.rounds())
        assert "another one leads" in asyncio.run(say_that_another_leads())
        for to in (a, b):
            for term in (1, 900, 2**53, 2**63 - 1):
                for leader in ("127.0.0.1:1", "nowhere", "", "\0", c.listen, liar.listen):
                    assert asyncio.run(lie(to, term, leader)).term == 0
        sites.until(lambda: all(len(one.rounds()) > before + 2 for one in (a, b, c)), "the run goes on")
        assert not any("another site leads" in one.text() for one in (a, b, c))
        assert a.text().count("leads the run at") == 1  # the same leader
        assert {KnownAgents(one.folder, print).term for one in (a, b, c)} == {0}

        # It leads as little where it says so itself, with a number after which there would be none.
        liar.start_agent()
        sites.until(lambda: liar.state().genesis is not None, "the liar follows")
        liar.kill_agent()
        KnownAgents(liar.folder, print).claim(2**63 - 3, liar.listen, force=True)
        liar.start_agent()
        sites.until(lambda: "enough sites to agree" in liar.text(), "it asks the others")
        before = len(a.rounds())
        sites.until(lambda: all(len(one.rounds()) > before + 2 for one in (a, b, c)), "the run goes on")
        assert {KnownAgents(one.folder, print).term for one in (a, b, c)} == {0}
        assert liar.agent is not None
        os.kill(liar.agent.pid, signal.SIGSTOP)

        a.kill_agent()
        a.kill_rank()
        assert members("promote", b, "--force").returncode == 0  # two of four members
        before = len(c.rounds())
        sites.until(lambda: len(c.rounds()) > before + 2, "rounds under b")
        assert c.state().term == 2
        os.kill(liar.agent.pid, signal.SIGKILL)
