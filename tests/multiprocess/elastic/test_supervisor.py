"""`geocomm run --elastic`: what it starts again, and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from geocomm.journal.run_state import Standing
from geocomm.security.keys import Keys
from support.elastic_sites import ENVIRONMENT, ElasticSite, ElasticSites
from support.hub_support import make_keys

pytestmark = pytest.mark.timeout(180)


class Supervised:
    """Sites whose processes `geocomm run --elastic` starts."""

    def __init__(self, folder: Path, keys: dict[str, Keys]) -> None:
        self.sites = ElasticSites(folder, keys)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *ranks: str) -> subprocess.Popen[bytes]:
        site = self.sites[name]
        log = site.folder.parent / f"{name}-run-{len(site.logs)}.log"
        site.logs.append(log)
        command = [
            *[sys.executable, "-m", "geocomm", "run", "--elastic", "--keys", str(site.keys.folder)],
            *["--hub", site.leader, "--listen", site.listen, "--run-dir", str(site.folder), "--"],
            *(ranks or ("--nproc-per-node", "1", "-m", "support.elastic_rank")),
        ]
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=ENVIRONMENT, start_new_session=True)
        self._running[name] = process
        return process

    def until(self, condition: Callable[[], bool], what: str) -> None:
        self.sites.until(condition, what, 90)

    def end(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


@contextlib.contextmanager
def supervised(folder: Path, sites: str) -> Generator[Supervised]:
    running = Supervised(folder, make_keys(folder / "keys", sites))
    try:
        yield running
    finally:
        running.end()


def processes_of(site: ElasticSite, what: str) -> list[int]:
    """Processes of the site whose command has `what` in it."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = (process / "environ").read_bytes().decode().split("\0")
            if what in command and f"GEOCOMM_RUN_DIR={site.folder}" in environment:
                found.append(int(process.name))
    return found


def standing(site: ElasticSite, name: str) -> Standing | None:
    known = site.state().sites.get(name)
    return None if known is None else known.standing


def test_what_dies_is_started_again_and_sigterm_leaves(tmp_path: Path) -> None:
    with supervised(tmp_path, "ab") as run:
        a, b = run.sites["a"], run.sites["b"]
        run.start("a")
        second = run.start("b")
        run.until(lambda: a.state().live == ["a", "b"], "both sites are ready")

        (agent,) = processes_of(b, "agent_process")
        os.kill(agent, signal.SIGKILL)
        run.until(lambda: agent not in (new := processes_of(b, "agent_process")) and len(new) == 1, "another agent")
        before = len(b.rounds())
        run.until(
            lambda: any("b" in [one.site for one in entry.members] for entry in b.rounds()[before:]), "it counts again"
        )
        (rank,) = processes_of(b, "-u -m support.elastic_rank")
        os.kill(rank, signal.SIGKILL)
        run.until(lambda: standing(a, "b") is Standing.AWAY, "the site whose rank died is away")
        run.until(lambda: standing(a, "b") is Standing.READY, "it is back")

        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 0, b.text()
        assert standing(a, "b") is Standing.LEFT
        assert not processes_of(b, "")


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
        assert second.wait(60) == 0, run.sites["b"].text()
        assert first.wait(60) == 0
        assert a.state().ended


def test_ranks_that_never_get_anywhere_are_given_up_in_words(tmp_path: Path) -> None:
    with supervised(tmp_path, "a") as run:
        process = run.start("a", "--nproc-per-node", "1", "--no-python", "false")
        assert process.wait(120) == 1
        assert "without one frame that counted" in run.sites["a"].text()


def test_when_the_supervisor_dies_all_of_the_site_ends(tmp_path: Path) -> None:
    with supervised(tmp_path, "a") as run:
        a = run.sites["a"]
        process = run.start("a")
        run.until(lambda: len(a.rounds()) > 1, "rounds come")
        process.kill()
        process.wait()
        run.until(lambda: not processes_of(a, ""), "all processes of the site end")
