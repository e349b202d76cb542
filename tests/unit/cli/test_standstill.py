"""`geocomm top` and `geocomm why` of a run that stands still: that comes first."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from geocomm.metrics import schema
from geocomm.observe.telemetry.report import Report
from geocomm.observe.telemetry.run_store import RunStore
from support.command_tree import APP
from support.reports import keep

S = 10**9
STEPS, SECONDS = 12, 42
"""Twelve steps of a second, and half a minute in a wait."""
OPERATION: dict[str, Any] = {
    "number": 1,
    "group": 1,
    "sequence": 1,
    "kind": "all_reduce",
    "codec": "",
    "dtype": "float32",
    "elements": 10,
    "failed": False,
    "raw_bytes_received": 0,
    "wire_bytes_sent": 0,
    "wire_bytes_received": 0,
    "coding_ns": 0,
    "peers": [],
    "issued_ns": STEPS * S,
    "began_ns": STEPS * S,
    "wait_began_ns": STEPS * S,
    **dict.fromkeys(("encoded_ns", "exchanged_ns", "ended_ns", "wait_ended_ns")),
}


def told(second: int, *, final: bool = False) -> Report:
    step = min(second, STEPS)
    peer: dict[str, Any] = {one.name: "" if one.kind is schema.MetricKind.TEXT else 0 for one in schema.PEERS}
    peer |= {"peer": "rank 1", "site": "b", "rank": 1, "tcp_bytes_sent": 1000, "streams": 0 if second > 20 else 2}
    return Report.model_validate(
        {
            "site": "a",
            "rank": 0,
            "process": "0123456789abcdef",
            "sequence": second,
            "time": 0.0,
            "now_ns": second * S,
            "final": final,
            "stats": {"exposed_seconds": 0.0, "peers": [peer], "groups": [], "local_steps": []},
            "training": {"step": step, "ended_ns": step * S, "totals": {"steps": step, "seconds": step}},
            "steps": [{"step": second, "ended_ns": second * S, "seconds": 1.0}] if second <= STEPS else [],
            "operations": [OPERATION] if second > STEPS else [],
        }
    )


def run_until_now(folder: Path, *, final: bool = False) -> None:
    store = RunStore(folder, write=True)
    for second in range(1, SECONDS + 1):
        keep(store, told(second, final=final and second == SECONDS), time.time() - SECONDS + second)
    store.close()


def lines(*arguments: str) -> list[str]:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(APP, [*arguments])
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


def test_top_begins_with_it_and_knows_of_the_wait_and_the_line(tmp_path: Path) -> None:
    run_until_now(tmp_path)
    said = lines("top", str(tmp_path), "--once")
    assert said[0].startswith("No step for 3")
    assert f"geocomm hang {tmp_path}" in said[0]
    row = next(line for line in said if line.startswith("a 1/1 reporting"))
    assert "100 %" in row  # exposed
    assert any(line.startswith("a to b") and "0, down" in line for line in said)


def test_why_begins_with_it(tmp_path: Path) -> None:
    run_until_now(tmp_path)
    assert lines("why", str(tmp_path))[0].startswith("No step for 3")
    assert json.loads(lines("why", str(tmp_path), "--json")[0])["standstill_seconds"] == pytest.approx(30, abs=5)


def test_a_run_that_has_ended_does_not_stand_still(tmp_path: Path) -> None:
    run_until_now(tmp_path, final=True)
    said = lines("top", str(tmp_path), "--once")
    assert not any(line.startswith("No step for") or "down" in line for line in said)
    assert json.loads(lines("why", str(tmp_path), "--json")[0])["standstill_seconds"] == 0
