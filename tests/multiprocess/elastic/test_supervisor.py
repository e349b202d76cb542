"""`geocomm run --elastic`: what it starts again, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from geocomm.elastic import supervisor
from geocomm.elastic.agent_process import AgentConfig
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.journal.entries import Left
from geocomm.elastic.journal.run_state import Standing
from geocomm.elastic.supervisor import SiteJob, Supervisor
from support.elastic_commands import Supervised, processes_of, supervised
from support.elastic_sites import ElasticSite
from support.hub_support import make_keys

pytestmark = pytest.mark.timeout(400)

# `geocomm` that gives up earlier: each start waits twice as long as the one before, and imports torch.
FEWER_STARTS = """
from geocomm.cli.main import main
from geocomm.elastic import rank_starts

rank_starts.MOST_FRUITLESS_STARTS = 2
main()
"""

# `geocomm` that waits for the last steps of its ranks without end, and so does its agent.
PATIENT = """
import sys

from geocomm.cli.main import main
from geocomm.core.records import line_of
from geocomm.elastic import supervisor
from geocomm.elastic.agent_process import AgentConfig

supervisor.LAST_STEPS_S = 1e6
AgentConfig.command = lambda self: [sys.executable, "-m", "support.patient_agent", line_of(self)]
main()
"""


def standing(site: ElasticSite, name: str) -> Standing | None:
    known = site.state().sites.get(name)
    return None if known is None else known.standing


def both_ready(run: Supervised) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
    """The supervisors of a, which leads, and b, once both are ready as far as b knows."""
    both = run.start("a", anew=True), run.start("b")
    run.until(lambda: run.sites["b"].state().live == ["a", "b"], "both sites are ready")
    return both


def until_it_counts(run: Supervised, site: ElasticSite) -> None:
    before = len(site.rounds())
    run.until(
        lambda: any(site.name in [one.site for one in entry.members] for entry in site.rounds()[before:]),
        "it counts again",
    )


def test_what_dies_is_started_again_and_sigterm_leaves(tmp_path: Path) -> None:
    with supervised(tmp_path, "ab") as run:
        a, b = run.sites["a"], run.sites["b"]
        run.start("a", anew=True)
        second = run.start("b", anew=True, options=("--publish", str(tmp_path / "stream")))
        run.until(lambda: a.state().live == ["a", "b"], "both sites are ready")
        run.until(lambda: "the weights go to" in b.text(), "b publishes")
        assert len(processes_of(b, "weights_process")) == 1

        (agent,) = processes_of(b, "agent_process")
        os.kill(agent, signal.SIGKILL)
        run.until(lambda: agent not in (new := processes_of(b, "agent_process")) and len(new) == 1, "another agent")
        until_it_counts(run, b)
        (rank,) = processes_of(b, "-u -m support.elastic_rank")
        os.kill(rank, signal.SIGKILL)
        run.until(
            lambda: rank not in (new := processes_of(b, "-u -m support.elastic_rank")) and len(new) == 1, "a rank"
        )
        until_it_counts(run, b)
        assert "they start again at once" in b.text()  # a frame of them has counted

        second.send_signal(signal.SIGTERM)
        assert run.ended("b") == 0, b.text()
        assert standing(a, "b") is Standing.LEFT
        # It gives out its last frames for a while, and does not join again for that.
        assert len([entry for entry in a.entries() if isinstance(entry, Left) and entry.site == "b"]) == 1
        run.until(lambda: not processes_of(b, ""), "all its processes end")


def test_site_that_leaves_gives_its_last_frames_to_one_whose_ranks_have_not_come_back(tmp_path: Path) -> None:
    """They lie on its disk alone: without them the other site's rounds would stand for ten minutes. So would they
    without one that the first site's agent had heard of when it died, and had not fetched yet."""
    with supervised(tmp_path, "ab") as run:
        a, b = run.sites["a"], run.sites["b"]
        first, second = both_ready(run)
        until_it_counts(run, b)
        first.kill()
        for process in processes_of(a, ""):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        store = FragmentStore(a.folder)
        listed = [(entry, one) for entry in a.rounds() for one in entry.frames if one.site == "b"]
        last, frame = listed[-1]
        store.frame_path(last.fragment, last.version, "b", frame.frame).unlink(missing_ok=True)
        waiting = run.start("a", "--nproc-per-node", "1", "--no-python", "sleep", "1000")
        run.until(lambda: standing(b, "a") is Standing.AWAY, "the first site has no ranks")
        until_it_counts(run, b)
        second.send_signal(signal.SIGTERM)
        assert run.ended("b") == 0, b.text()

        def has_all() -> bool:
            return all(
                store.frame_path(entry.fragment, entry.version, one.site, one.frame).exists()
                for entry in a.rounds()
                for one in entry.frames
            )

        run.until(has_all, "the first site has the frames of all rounds")  # b's agent gives them out for a while
        waiting.send_signal(signal.SIGTERM)
        run.ended("a")


def test_sigterm_while_there_is_no_agent_or_it_has_just_begun_has_the_site_leave(tmp_path: Path) -> None:
    with supervised(tmp_path, "ab") as run:
        a, b = run.sites["a"], run.sites["b"]
        run.start("a", anew=True)
        second = run.start("b", anew=True)
        run.until(lambda: b.state().live == ["a", "b"], "both sites are ready")
        (agent,) = processes_of(b, "agent_process")
        os.kill(agent, signal.SIGKILL)
        run.until(lambda: agent not in (new := processes_of(b, "agent_process")) and len(new) == 1, "another agent")
        (agent,) = processes_of(b, "agent_process")
        os.kill(agent, signal.SIGKILL)  # so soon that the next one has to wait
        second.send_signal(signal.SIGTERM)
        assert run.ended("b") == 0, b.text()
        assert standing(a, "b") is Standing.LEFT


def test_sigterm_to_every_process_of_a_site_waits_for_no_rank_that_is_dead(tmp_path: Path) -> None:
    with supervised(tmp_path, "ab") as run:
        a, b = run.sites["a"], run.sites["b"]
        run.start("a", anew=True)
        (tmp_path / "patient.py").write_text(PATIENT)
        second = run.start("b", anew=True, program=(str(tmp_path / "patient.py"),))
        run.until(lambda: b.state().live == ["a", "b"], "both sites are ready")
        for process in (second.pid, *processes_of(b, "")):  # as systemd does
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        assert run.ended("b") == 0, b.text()
        assert standing(a, "b") is Standing.LEFT


def test_a_leader_whose_ranks_are_done_leads_on(tmp_path: Path) -> None:
    with supervised(tmp_path, "ab") as run:
        a = run.sites["a"]
        first = run.start("a")
        second = run.start("b")
        run.until(lambda: a.state().live == ["a", "b"], "both sites are ready")
        first.send_signal(signal.SIGTERM)
        run.until(lambda: standing(a, "a") is Standing.LEFT, "the leader's site has left")
        before = len(a.rounds())
        run.until(lambda: len(a.rounds()) > before + 1, "the other site's rounds go on")
        second.send_signal(signal.SIGTERM)
        assert run.ended("b") == 0, run.sites["b"].text()
        assert run.ended("a") == 0, a.text()
        assert not a.state().ended  # nobody has finished: they may come back
        assert {standing(a, name) for name in "ab"} == {Standing.LEFT}


def test_a_leader_that_hears_sigterm_long_before_its_supervisor_leads_on(tmp_path: Path) -> None:
    """As where systemd sends it to every process of a site, on a busy machine."""
    with supervised(tmp_path, "ab") as run:
        a, b = run.sites["a"], run.sites["b"]
        first, second = both_ready(run)
        (agent,) = processes_of(a, "agent_process")
        os.kill(agent, signal.SIGTERM)
        run.until(lambda: "leads on for b" in a.text(), "the leader's site has left")
        time.sleep(1)
        first.send_signal(signal.SIGTERM)
        run.until(lambda: not processes_of(a, "-u -m support.elastic_rank"), "its supervisor ends the ranks")
        before = len(b.rounds())
        run.until(lambda: len(b.rounds()) > before + 1, "the other site's rounds go on")
        assert processes_of(a, "agent_process") == [agent]
        first.send_signal(signal.SIGTERM)
        assert run.ended("a") == 0, a.text()
        second.send_signal(signal.SIGTERM)
        second.send_signal(signal.SIGTERM)
        run.ended("b")


def test_ranks_that_do_not_hear_sigterm_are_ended_while_the_agent_leads_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf_now = tmp_path / "deaf"
    deaf = ["sh", "-c", "trap '' TERM USR1; echo >> $1; while :; do sleep 1; done", "sh", str(deaf_now)]
    monkeypatch.setattr(AgentConfig, "command", lambda self: deaf)
    monkeypatch.setattr(SiteJob, "command", lambda self, run_dir: deaf)
    monkeypatch.setattr(supervisor, "_LEAVE_LIMIT_S", 1.0)
    monkeypatch.setattr(supervisor, "_END_LIMIT_S", 1.0)
    monkeypatch.setattr(supervisor, "LAST_STEPS_S", 0.0)
    monkeypatch.setattr(supervisor, "LAST_OFFERS_S", 0.0)
    (tmp_path / "a").mkdir()
    keys = make_keys(tmp_path / "keys", "a")["a"]
    config = AgentConfig(leader="127.0.0.1:1", keys=str(keys.folder), run_dir=str(tmp_path / "a"))

    async def play() -> None:
        site = Supervisor(config, SiteJob(()), keys)
        running = asyncio.create_task(site.run())
        async with asyncio.timeout(60):
            while not deaf_now.exists() or deaf_now.stat().st_size < 2:  # agent and ranks
                await asyncio.sleep(0.05)
            site._leave(signal.SIGTERM)
            assert await site._ranks.wait() == -signal.SIGKILL
            assert site._agent.returncode is None
            assert not running.done()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(play())


def test_ranks_that_never_get_anywhere_are_given_up_in_words(tmp_path: Path) -> None:
    (tmp_path / "fewer_starts.py").write_text(FEWER_STARTS)
    with supervised(tmp_path, "a") as run:
        program = (str(tmp_path / "fewer_starts.py"),)
        process = run.start("a", "--nproc-per-node", "1", "--no-python", "false", program=program)
        assert process.wait(120) == 1
        text = run.sites["a"].text()
        assert text.count("they start again in") == 1
        assert "ended 2 times without one frame that counted" in text


def test_when_the_supervisor_dies_all_of_the_site_ends(tmp_path: Path) -> None:
    with supervised(tmp_path, "a") as run:
        a = run.sites["a"]
        process = run.start("a", anew=True)
        run.until(lambda: len(a.rounds()) > 1, "rounds come")
        process.kill()
        process.wait()
        run.until(lambda: not processes_of(a, ""), "all processes of the site end")
