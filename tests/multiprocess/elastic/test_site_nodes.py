"""A site of two nodes in an elastic run, both on this machine: the second node has no run folder and no agent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from geocomm.core.addresses import free_port
from geocomm.journal.entries import Round
from geocomm.journal.journal import FILE_NAME, SqliteJournal
from geocomm.telemetry.run_store import RunStore
from support.elastic_sites import ENVIRONMENT
from support.hub_support import make_keys

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


def test_a_site_of_two_nodes_trains_beside_another(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys", "ab")
    hub, site_hub = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    program = ["--nproc-per-node", "1", "-m", "support.elastic_training", str(tmp_path), "60", "0.05", "8"]

    def start(site: str, wrap: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "geocomm", "run", "--elastic", "--hub", hub, *options, "--", *program, wrap]
        environment = ENVIRONMENT | {"GEOCOMM_KEYS": str(keys[site].folder), "OMP_NUM_THREADS": "1"}
        log = (tmp_path / f"{site}{len(options)}.log").open("wb")
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    nodes = ["--site-nodes", "2", "--site-hub", site_hub]
    started = [
        start("a", "fsdp2", "--run-dir", str(tmp_path / "a"), "--wait-for", "a,b", *nodes),
        start("a", "fsdp2", "--node-rank", "1", *nodes),
        start("b", "plain", "--run-dir", str(tmp_path / "b")),
    ]
    try:
        said = "\n".join(path.read_text() for path in tmp_path.glob("*.log"))
        assert [process.wait(200) for process in started] == [0, 0, 0], said
    finally:
        for process in started:
            process.kill()
    ends = [json.loads((tmp_path / f"a.{rank}.jsonl").read_text().splitlines()[-1])["end"] for rank in range(2)]
    assert ends[0] == ends[1]
    journal = SqliteJournal(tmp_path / "a" / FILE_NAME, read_only=True)
    members = {one.site for entry in journal.read() if isinstance(entry, Round) for one in entry.members}
    journal.close()
    assert members == {"a", "b"}
    store = RunStore(tmp_path / "a")
    assert {one.rank.rank for one in store.latest() if one.rank.site == "a"} == {0, 1}, "reports of the second node"
    store.close()
