"""The leader's site is gone for good: another one is promoted, and the run goes on."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from geocomm.core.run_dir import RunDir
from geocomm.elastic.journal.entries import Round, TermBegun
from support.elastic_sites import ENVIRONMENT, LIMIT_S, ElasticSite, ElasticSites, members
from support.hub_support import make_keys
from support.warm_executable import warm_executable

pytestmark = pytest.mark.timeout(400)


def end(site: ElasticSite) -> None:
    site.kill_agent()
    site.kill_rank()


def hashes(site: ElasticSite) -> list[str]:
    return [entry.hash for entry in site.entries()]


def test_the_run_outlives_the_site_that_leads_it(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), wait_for=("a", "b", "c")) as sites:
        a, b, c = sites.values()
        sites.start()
        while_led = members("promote", b)
        assert while_led.returncode == 2
        assert "site a leads" in while_led.stderr

        end(a)
        both = [one for one in hashes(b) if one in hashes(c)]
        done = members("promote", b)
        assert done.returncode == 0, done.stderr
        assert "term 1" in done.stdout
        before = len(c.rounds())
        sites.until(lambda: len(c.rounds()) >= before + 3, "rounds at the other site")
        assert hashes(b)[: len(both)] == both  # what two sites had is there
        [taken_over] = [entry for entry in c.entries() if isinstance(entry, TermBegun)]
        assert (taken_over.site, taken_over.term) == ("b", 1)
        shown = members("ls", c)
        assert shown.returncode == 0
        assert "does not answer" not in shown.stderr

        # The site that led comes back: it asks first, and follows.
        counted = b.listed("a")
        a.start()
        sites.until(lambda: b.listed("a") >= counted + 2, "the site that led before counts again")
        assert a.state().term == 1
        # So does the new leader after a restart, and a site that looks for the leader where it was at the start.
        end(b)
        b.start()
        end(c)
        c.start()
        counted = b.listed("c")
        sites.until(lambda: b.listed("c") >= counted + 2, "all go on after a restart")


def test_two_leaders_meet_and_the_lower_term_gives_way(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), wait_for=("a", "b", "c")) as sites:
        a, b, c = sites.values()
        sites.start()
        with a.paused():
            refused = members("promote", b, "--address", "nowhere")
            assert refused.returncode == 2
            assert "'nowhere'" in refused.stderr
            assert members("promote", b).returncode == 0
            before = len(c.rounds())
            sites.until(lambda: len(c.rounds()) >= before + 3, "rounds under the new leader")
            head = len(c.entries())
        # The former leader leads on, alone, until it hears of the later one; what it wrote meanwhile is set aside.
        sites.until(lambda: a.state().term == 1 and len(a.entries()) > head, "the former leader follows")
        counted = b.listed("a")

        def counts_again() -> bool:
            assert a.rank is not None
            if a.rank.poll() is not None:  # it had rounds that the run does not have; a supervisor starts it again
                assert "stopped: the entries of site a" in a.text()
                a.start_rank()
            return b.listed("a") >= counted + 2

        sites.until(counts_again, "the site of the former leader counts again")
        both = [*zip(hashes(a), hashes(b), strict=False)]
        assert len(both) > head
        assert all(one == other for one, other in both)


def test_a_promotion_goes_on_after_its_agent_was_killed_between_agreement_and_entry(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), wait_for=("a", "b", "c")) as sites:
        a, b, c = sites.values()
        sites.start()

        def agreed(site: ElasticSite) -> bool:
            path = site.folder / "agents.json"
            return path.exists() and json.loads(path.read_text())["term"] == 1

        end(a)
        sites.until(lambda: "waiting for the leader" in b.text(), "b writes no entry of a any more")
        # The disk does not take the entry by which b begins to lead; then its agent dies.
        with contextlib.closing(sqlite3.connect(RunDir(b.folder).journal)) as journal:
            journal.execute("BEGIN IMMEDIATE")
            arguments = [warm_executable(), "-m", "geocomm", "members", "promote", "--run-dir", str(b.folder)]
            with subprocess.Popen(arguments, env=ENVIRONMENT, stderr=subprocess.DEVNULL) as promotion:
                sites.until(lambda: agreed(b) and agreed(c), "b claims term 1, and c agrees")
                b.kill_agent()
                assert promotion.wait(LIMIT_S) == 2
        assert not any(isinstance(entry, TermBegun) for entry in b.entries())
        before = len(c.rounds())
        b.start_agent()
        sites.until(lambda: len(c.rounds()) >= before + 2, "rounds under b, which nobody promoted again")
        [begun] = [entry for entry in c.entries() if isinstance(entry, TermBegun)]
        assert (begun.site, begun.term) == ("b", 1)


def test_a_rank_that_was_away_while_its_entries_were_set_aside_starts_again(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), wait_for=("a", "b", "c")) as sites:
        a, b, c = sites.values()
        sites.start()
        assert a.agent is not None
        assert a.rank is not None
        with b.paused(), c.paused():
            alone = len(b.rounds()) + 3
            sites.until(lambda: len(a.rounds()) >= alone, "rounds of a alone")
            for process in (a.agent, a.rank):
                process.send_signal(signal.SIGSTOP)
        assert members("promote", b).returncode == 0
        head = len(a.entries())
        sites.until(lambda: len(c.entries()) > head, "more rounds under the new leader than a had")
        # a's agent sets its entries aside before its rank comes back to it.
        a.agent.send_signal(signal.SIGCONT)
        sites.until(lambda: a.state().term == 1 and len(a.entries()) > head, "the former leader follows")
        a.rank.send_signal(signal.SIGCONT)
        assert a.rank.wait(LIMIT_S) != 0
        assert "stopped: the entries of site a" in a.text()
        a.start_rank()
        counted = b.listed("a")
        sites.until(lambda: b.listed("a") >= counted + 2, "a counts again")
        assert not any("other bits" in site.text() for site in sites.values())


def test_a_promotion_without_half_of_the_members_has_to_be_forced(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "ab"), wait_for=("a", "b")) as sites:
        a, b = sites.values()
        for site in sites.values():
            site.start()
        sites.until(lambda: all(a.listed(name) >= 2 for name in "ab"), "both count")
        # b is cut off, so that a goes on alone and its later rounds are unknown to b.
        end(b)
        before = len(a.rounds())
        sites.until(lambda: len(a.rounds()) >= before + 3, "rounds of a alone")
        end(a)
        b.start()
        tries = iter(lambda: members("promote", b), None)
        refused = next(one for one in tries if "does not answer" not in one.stderr)  # its agent is up
        assert refused.returncode == 2
        assert "1 of 2 members are not reached: a" in refused.stderr
        assert members("promote", b, "--force").returncode == 0
        before = len(b.rounds())
        sites.until(lambda: len(b.rounds()) >= before + 2, "rounds of b alone")
        lost = [entry.hash for entry in a.rounds() if entry.hash not in hashes(b)]
        assert lost
        # a rejoins: its rank begins where b is.
        a.start()
        sites.until(lambda: a.state().term == 2, "a follows")
        counted = b.listed("a")
        sites.until(lambda: b.listed("a") >= counted + 2, "a counts")
        assert not any(isinstance(entry, Round) and entry.hash in lost for entry in a.entries())
        assert list(a.folder.glob("journal-*.jsonl"))
        assert not any("other bits" in site.text() for site in sites.values())
