"""Alerts of an elastic run: its leader tells of a site that dies, and not of one that leaves in order."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from pathlib import Path

import pytest

from geocomm.core.run_dir import RunDir
from geocomm.observe.telemetry.run_store import NoStoreError, RunStore
from support.elastic_commands import Supervised, supervised
from support.elastic_sites import ElasticSite
from support.json_lines import lines_of

pytestmark = [pytest.mark.timeout(500), pytest.mark.slow]


def start(run: Supervised, name: str, folder: Path, **variables: str) -> subprocess.Popen[bytes]:
    """A site that trains a small model for longer than the test lasts."""
    program = ("-m", "support.elastic_training", str(folder), "100000", "0.2", "5")
    return run.start(name, "--nproc-per-node", "1", *program, environment={"OMP_NUM_THREADS": "1", **variables})


def stepping(leader: ElasticSite) -> set[str]:
    """Sites that report, at the leader, that they have made some steps."""
    try:
        with contextlib.closing(RunStore(leader.folder)) as store:
            reports = [received.report for received in store.latest()]
    except NoStoreError:
        return set()
    return {one.site for one in reports if one.training.get("step", 0) > 5 and not one.final}


def told(site: ElasticSite) -> list[tuple[str, str, str, str]]:
    """Status, name, severity and site of what it has told, in order."""
    lines = lines_of(RunDir(site.folder).alerts)
    return [(line["status"], line["alert"], line["severity"], line["labels"].get("site", "")) for line in lines]


def test_leader_tells_of_a_site_that_dies_and_returns_and_not_of_one_that_leaves(tmp_path: Path) -> None:
    with supervised(tmp_path, "abc", together=True) as run:
        leader = run.sites["a"]
        running = {name: start(run, name, tmp_path) for name in "ac"}
        dear = {"GEOCOMM_EGRESS_PRICE": "1000", "GEOCOMM_EGRESS_BUDGET": "0.01"}  # 400 bytes within an hour
        running["b"] = start(run, "b", tmp_path, **dear)
        run.until(lambda: stepping(leader) == set("abc"), "all sites report steps", 200)
        run.until(lambda: bool(told(leader)), "what b sends is dear")
        assert told(leader) == [("firing", "EgressBudget", "warning", "b")]
        running["b"].kill()  # all of its processes end
        running["c"].send_signal(signal.SIGTERM)
        assert run.ended("c", 120) == 0, run.sites["c"].text()
        run.until(lambda: len(told(leader)) > 1, "b is silent")
        assert told(leader)[1:] == [("firing", "SiteSilent", "warning", "b")]
        start(run, "b", tmp_path)
        ended = {("resolved", name, "warning", "b") for name in ("EgressBudget", "SiteSilent")}
        run.until(lambda: len(told(leader)) > 3, "their ends, a minute after their causes", 200)
        assert set(told(leader)[2:]) == ended
        assert not any(told(run.sites[name]) for name in "bc")
