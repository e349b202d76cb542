"""metrics.jsonl and the screen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from geocomm.train.train_config import LoggingConfig
from geocomm.train.train_log import METRICS, RunLog, step_summary

pytestmark = pytest.mark.unit
_STEP = {
    "step": 1,
    "loss": 2.5,
    "lr": 1e-3,
    "step_seconds": 0.5,
    "tokens_per_second": 2048.0,
    "wire_bytes_sent": 3_000_000,
    "exposed_seconds": 0.25,
}
_QUIET = LoggingConfig(tensorboard=False, every_steps=1)


def _entries(folder: Path) -> list[dict[str, object]]:
    def refuse(name: str) -> float:
        raise AssertionError(name)

    return [json.loads(line, parse_constant=refuse) for line in (folder / METRICS).read_text().splitlines()]


def test_lines_can_be_read_while_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLog(tmp_path, _QUIET, 2, 0, rank=0) as log:
        log.step(_STEP)
        assert [(e["kind"], e["step"], e["loss"]) for e in _entries(tmp_path)] == [("step", 1, 2.5)]
        assert "2.5" in capsys.readouterr().out


def test_a_later_start_appends(tmp_path: Path) -> None:
    for step in (1, 2):
        with RunLog(tmp_path, _QUIET, 2, step - 1, rank=0) as log:
            log.step(_STEP | {"step": step})
    assert [e["step"] for e in _entries(tmp_path)] == [1, 2]


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    with RunLog(tmp_path, _QUIET, 2, 0, rank=0) as log:
        log.write("step", {"step": 1, "loss": float("nan"), "sites": {"a": {"x": float("inf")}}})
    assert _entries(tmp_path)[0]["loss"] is None
    assert _entries(tmp_path)[0]["sites"] == {"a": {"x": None}}


def test_other_ranks_write_and_print_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLog(tmp_path / "run", _QUIET, 2, 0, rank=1) as log:
        log.step(_STEP)
        log.say("hello")
    assert not (tmp_path / "run").exists()
    assert capsys.readouterr().out == ""


def test_tensorboard_holds_the_numbers(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with RunLog(tmp_path, LoggingConfig(), 2, 0, rank=0) as log:
        log.step(_STEP | {"sites": {"paris": {"tokens_per_second": 7.0, "wire_bytes_sent": None}}})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [e.value for e in events.Scalars("step/loss")] == [2.5]
    assert [e.value for e in events.Scalars("site-paris/tokens_per_second")] == [7.0]
    assert "site-paris/wire_bytes_sent" not in events.Tags()["scalars"]


def test_step_summary_without_wire_counters_leaves_them_out() -> None:
    assert "sent" in step_summary(_STEP)
    assert "sent" not in step_summary(_STEP | {"wire_bytes_sent": None, "exposed_seconds": None})
