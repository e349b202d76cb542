"""A site of two nodes in an elastic run, both on this machine: the second node has no agent."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.run_dir import RunDir
from geocomm.elastic.journal.entries import Round
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.observe.telemetry.run_store import RunStore
from support.dealt_sets import DataSet
from support.elastic_sites import ENVIRONMENT
from support.hub_support import make_keys
from support.json_lines import lines_of
from support.local_jobs import free_port
from support.warm_executable import warm_executable

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


class Nodes:
    """The processes of the nodes of site a, the first two, and of site b."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.steps = folder, 1_000_000
        self.keys = make_keys(folder / "keys", "ab")
        self.hub, self.site_hub = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.started: list[subprocess.Popen[bytes]] = []
        self.of_b: list[str] = []
        self.script: list[str] = []
        """In place of `support.elastic_training`."""

    def start_a(self, wrap: str, *of_second: str) -> list[subprocess.Popen[bytes]]:
        nodes = ["--site-nodes", "2", "--site-hub", self.site_hub]
        first = self._start("a", wrap, "--run-dir", str(self.folder / "a"), "--wait-for", "a,b", *nodes)
        host, _, port = self.site_hub.partition(":")
        with socket.socket() as taken:  # else the second node, on the same machine, may be the hub
            while taken.connect_ex((host, int(port))) != 0:
                assert first.poll() is None, self.said()
                time.sleep(0.1)
        return [first, self._start("a", wrap, "--node-rank", "1", *nodes, *of_second)]

    def start_b(self) -> subprocess.Popen[bytes]:
        return self._start("b", "plain", "--run-dir", str(self.folder / "b"), *self.of_b)

    def _start(self, site: str, wrap: str, *options: str) -> subprocess.Popen[bytes]:
        own = ["--hub", self.hub, *options]
        training = ["-m", "support.elastic_training", str(self.folder), str(self.steps), "0.05", "8", wrap]
        script = self.script or training
        command = [warm_executable(), "-m", "geocomm", "run", "--elastic", *own, "--", "--nproc-per-node", "1", *script]
        environment = ENVIRONMENT | {"GEOCOMM_KEYS": str(self.keys[site].folder), "OMP_NUM_THREADS": "1"}
        log = (self.folder / f"{site}{len(self.started)}.log").open("wb")
        process = subprocess.Popen(command, env=environment, cwd=self.folder, stdout=log, stderr=log)
        self.started.append(process)
        return process

    def said(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def lines(self, name: str) -> list[dict[str, Any]]:
        return lines_of(self.folder / f"{name}.jsonl")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    for process in made.started:
        process.kill()


def test_a_site_of_two_nodes_trains_beside_another(nodes: Nodes) -> None:
    nodes.steps = 60
    nodes.start_a("fsdp2")
    nodes.start_b()
    assert [process.wait(200) for process in nodes.started] == [0, 0, 0], nodes.said()
    ends = [nodes.lines(f"a.{rank}")[-1]["end"] for rank in range(2)]
    assert ends[0] == ends[1]
    journal = SqliteJournal(RunDir(nodes.folder / "a").journal, read_only=True)
    members = {one.site for entry in journal.read() if isinstance(entry, Round) for one in entry.members}
    journal.close()
    assert members == {"a", "b"}
    store = RunStore(nodes.folder / "a")
    assert {one.rank.rank for one in store.latest() if one.rank.site == "a"} == {0, 1}, "reports of the second node"
    store.close()


def test_the_nodes_of_a_site_read_what_is_dealt_to_it_together(nodes: Nodes) -> None:
    data = DataSet(nodes.folder / "data", shards=24)
    nodes.of_b = ["--data", data.catalog.url, "--sequence-length", str(data.LENGTH)]
    nodes.script = ["-m", "support.data_rank", str(nodes.folder), "2", "0.02"]
    b = nodes.start_b()  # it leads, since it is there first
    while "leads the run" not in nodes.said():
        assert b.poll() is None, nodes.said()
        time.sleep(0.1)
    nodes.start_a("ddp")
    until = time.monotonic() + 200
    while sum(map(len, (nodes.lines(f"a.{rank}") for rank in range(2)))) < 100:
        assert time.monotonic() < until, nodes.said()
        time.sleep(0.2)
    (nodes.folder / "stop").touch()
    assert [process.wait(100) for process in nodes.started] == [0, 0, 0], nodes.said()
    read = {rank: [row for row in nodes.lines(f"a.{rank}") if "ids" in row] for rank in range(2)}
    assert [row["at"] for row in read[1]] == [row["at"] + 2 for row in read[0]]
    places = [row["at"] + place for rows in read.values() for row in rows for place in range(2)]
    assert sorted(places) == [*range(len(places))]
    journal = SqliteJournal(RunDir(nodes.folder / "a").journal, read_only=True)
    deal = journal.state().sites["a"].line[0].sequences
    journal.close()
    ids = [number for rows in read.values() for row in rows if row["at"] + 2 <= deal for number in row["ids"]]
    assert len(set(ids)) == len(ids) >= 20


@pytest.mark.parametrize(("wrap", "own_folder"), [("ddp", False), ("fsdp2", True)])
def test_a_site_of_two_nodes_goes_on_with_its_moments(nodes: Nodes, wrap: str, own_folder: bool) -> None:
    """A sharded model's second node needs a folder for its part; another one gets all from the first."""
    of_second = ["--run-dir", str(nodes.folder / "second")] if own_folder else []

    def wait_for(count: int, name: str, *, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        until = time.monotonic() + 120
        while sum("step" in line for line in nodes.lines(name)) < count:
            assert time.monotonic() < until, nodes.said()
            assert all(process.poll() is None for process in processes), nodes.said()
            time.sleep(0.2)

    b = nodes.start_b()
    while "leads the run" not in nodes.said():  # who leads stays for the others when it is asked to end
        assert b.poll() is None, nodes.said()
        time.sleep(0.1)
    first = nodes.start_a(wrap, *of_second)
    wait_for(40, "a.1", processes=[*first, b])
    first[0].send_signal(signal.SIGTERM)
    for process in first:
        process.wait(100)
    before = len(nodes.lines("a.1"))
    second = nodes.start_a(wrap, *of_second)
    wait_for(before + 5, "a.1", processes=[*second, b])
    for rank in range(2):
        steps = [line for line in nodes.lines(f"a.{rank}") if "step" in line]
        assert steps[0]["began_with"] == []
        assert steps[-1]["began_with"] != []
    (nodes.folder / "stop").touch()
    assert [process.wait(100) for process in (*second, b)] == [0, 0, 0], nodes.said()
