"""`geocomm top --once`: what stands in the picture of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.known_agents import About, tell_led
from geocomm.elastic.journal.entries import Data, Deal, Genesis, Join, Ready
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.metrics import schema
from geocomm.observe.telemetry.report import Report
from geocomm.observe.telemetry.run_store import RunStore
from support.command_tree import APP
from support.reports import keep

S = 10**9
MB = 1_000_000


def told(second: int) -> Report:
    peer: dict[str, Any] = {one.name: "" if one.kind is schema.MetricKind.TEXT else 0 for one in schema.PEERS}
    peer |= {"peer": "rank 1", "site": "b", "rank": 1, "bytes_sent": second * MB, "rtt_us": 30_000, "outages": 1}
    totals = {"steps": second, "tokens": 70 * second}
    return Report.model_validate(
        {
            "site": "a",
            "rank": 0,
            "process": "0123456789abcdef",
            "sequence": second,
            "time": 0.0,
            "now_ns": second * S,
            "final": second == 9,
            "stats": {"exposed_seconds": second / 2, "peers": [peer], "groups": [], "local_steps": []},
            "training": {"step": second, "of_steps": 12, "loss": 2.5, "ended_ns": second * S, "totals": totals},
            "events": [{"kind": "checkpoint", "path": "[red]x"}] if second == 9 else [],
        }
    )


def test_run_that_deals_data_shows_what_is_left_and_what_reading_cost(tmp_path: Path) -> None:
    journal = SqliteJournal(RunDir(tmp_path).journal)
    for kind, fields in (
        (Genesis, {"run": "1" * 32, "settings": {}, "layout": "3" * 32, "digests": ("4" * 32,), "every": 10}),
        (Data, {"set": "cat", "number": 1, "sha256": "7" * 64, "sequence_length": 4096}),
        (Join, {"site": "a", "store": "5" * 32}),
        (Ready, {"site": "a"}),
        (Deal, {"site": "a", "shards": "0:0", "sequences": 1000}),
    ):
        head = journal.head
        journal.append(kind(index=head.index + 1, prev=head.hash, term=0, **fields), head)
    journal.close()
    About(site="a", leads=True).write(tmp_path)
    tell_led(tmp_path, [], 3_000_000_000)
    (tmp_path / "counters-agent.json").write_text('{"data_repeated_tokens": 81970}')
    counted = {"waited_seconds": 7.0, "fetched_bytes": 64_000_000, "fetched_dollars": 1.25}
    report = told(9)
    keep(RunStore(tmp_path, write=True), report.model_copy(update={"stats": report.stats | {"data": counted}}), 9.0)
    result = CliRunner(env={"COLUMNS": "200"}).invoke(APP, ["top", str(tmp_path), "--once"])
    assert result.exit_code == 0, result.output
    assert "3.00 G tokens left of this pass, 81970 tokens read again" in " ".join(result.stdout.split())
    assert "dealt waited fetched cost" in " ".join(result.stdout.split())
    assert "4.10 M 7 s 64.0 MB $1.25" in " ".join(result.stdout.split())


def test_run_that_is_over_is_shown_as_it_was_at_its_last_report(tmp_path: Path) -> None:
    store = RunStore(tmp_path, write=True)
    for second in range(1, 10):
        keep(store, told(second), float(second))
    result = CliRunner(env={"COLUMNS": "200"}).invoke(APP, ["top", str(tmp_path), "--once"])
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == "step 9 of 12, 3 s left, loss 2.5000, 70 tokens/s"
    assert lines[1].startswith("The last report came ")
    assert "a 0/1 ended 9 0 s 1 70 50 % 2.5000 9.0 0 s" in lines
    assert "a to b 8.0 9.0 30 0 % 1 (0 s) 0" in lines
    assert "b to a 0.0 0.0 30 - 0 0" in lines
    assert any(line.startswith(("Computation: ", "Not known")) for line in lines)
    assert any(line.startswith("checkpoint of step ?, [red]x ") and line.endswith(" a, rank 0") for line in lines)
