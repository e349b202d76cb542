"""`geocomm trace` of two processes: what one sends arrives at the other after that, on one clock."""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.distributed as dist
from typer.testing import CliRunner

import geocomm
from geocomm.observe.telemetry.run_store import RunStore
from support.chrome_trace import open_trace
from support.collectors import collecting
from support.command_tree import APP
from support.harness import Ranks

LIMIT_S = 60
STEPS = 4


def _train() -> None:
    for step in range(STEPS):
        dist.all_reduce(torch.ones(100_000))
        geocomm.report_step(step, tokens=5)


def test_trace_of_two_processes(tmp_path: Path) -> None:
    sites = ["rome", "berlin"]
    with collecting(tmp_path, sites) as environments, Ranks(sites, environment_of=environments) as ranks:
        ranks.init()
        ranks.run(_train)
        store, end = RunStore(tmp_path), time.monotonic() + LIMIT_S
        while (
            len(store.rows("steps")) < 2 * STEPS
            or len([row for _, row in store.rows("operations") if row["ended_ns"]]) < 2 * STEPS
        ):
            assert time.monotonic() < end
            time.sleep(0.2)
        out = tmp_path / "run.tar"
        result = CliRunner().invoke(APP, ["trace", str(tmp_path), "--steps", "2", "--out", str(out)])
        assert result.exit_code == 0, result.output
    assert f"{out}: 2 ranks, " in result.stdout
    trace = open_trace(out)
    names = ("rank 0 (site rome)", "rank 1 (site berlin)")
    error_us = (
        max(abs(value) for value in trace.manifest["attributes"].values()) / 1e3
    )  # both have this machine's clock
    for number in (STEPS - 1, STEPS):
        name = f"all_reduce {number}"
        for here, there in (names, names[::-1]):
            call = trace.find(here, "operations", name)
            assert trace.find(there, f"from {here}", name).begin_us > call.begin_us - error_us
            assert call.args["elements"] == 100_000
    for process in names:
        assert [one.name for one in trace.slices if (one.process, one.lane) == (process, "steps")] == [
            "step 2",
            "step 3",
        ]
