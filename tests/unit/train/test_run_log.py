"""metrics.jsonl and the screen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from geocomm.metrics.events import EventLog, EventReader
from geocomm.train.runs.run_folder import RunFolder
from geocomm.train.runs.run_log import RestTime, RunLog, step_summary
from geocomm.train.runs.run_tracking import LoggingConfig, RunTracking

_STEP = {
    "step": 1,
    "loss": 2.5,
    "lr": 1e-3,
    "step_seconds": 0.5,
    "tokens_per_second": 2048.0,
    "wire_bytes_sent": 3_000_000,
    "exposed_seconds": 0.25,
}
_QUIET = LoggingConfig(trackers=[], every_steps=1)


def _entries(folder: Path) -> list[dict[str, object]]:
    def refuse(name: str) -> float:
        raise AssertionError(name)

    return [json.loads(line, parse_constant=refuse) for line in RunFolder(folder).metrics.read_text().splitlines()]


def _log(folder: Path, first_step: int = 0, rank: int = 0, events: EventLog | None = None) -> RunLog:
    return RunLog(RunFolder(folder), _QUIET, 2, first_step, rank, EventReader(events or EventLog()))


def test_lines_can_be_read_while_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _log(tmp_path) as log:
        log.step(_STEP)
        assert [(e["kind"], e["step"], e["loss"]) for e in _entries(tmp_path)] == [("step", 1, 2.5)]
        assert "2.5" in capsys.readouterr().out


def test_a_later_start_appends(tmp_path: Path) -> None:
    for step in (1, 2):
        with _log(tmp_path, step - 1) as log:
            log.step(_STEP | {"step": step})
    assert [e["step"] for e in _entries(tmp_path)] == [1, 2]


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    with _log(tmp_path) as log:
        log.write("step", {"step": 1, "loss": float("nan"), "sites": {"a": {"x": float("inf")}}})
    assert _entries(tmp_path)[0]["loss"] is None
    assert _entries(tmp_path)[0]["sites"] == {"a": {"x": None}}


def test_other_ranks_write_and_print_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _log(tmp_path / "run", rank=1) as log:
        log.step(_STEP)
        log.say("hello")
    assert not (tmp_path / "run").exists()
    assert capsys.readouterr().out == ""


def test_events_are_lines_of_their_own_on_every_rank_and_among_the_entries_of_rank_0(tmp_path: Path) -> None:
    lines = []
    for rank in (0, 1):
        happened = EventLog()
        happened.identify(rank, "ab"[rank])
        with _log(tmp_path, rank=rank, events=happened) as log:
            lines.append(happened.record("checkpoint", step=1, path="p", seconds=0.5).line())
            log.step(_STEP)
            lines.append(happened.record("checkpoint", step=2, path="q", seconds=0.5).line())
    assert [json.loads(line) for line in RunFolder(tmp_path).events.read_text().splitlines()] == lines
    entries = _entries(tmp_path)
    assert [entry["kind"] for entry in entries] == ["step", "checkpoint", "checkpoint"]
    assert entries[1:] == lines[:2]


def test_tensorboard_gets_the_numbers_and_the_verdict(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder, config = RunFolder(tmp_path), LoggingConfig()
    site = {"tokens_per_second": 7.0, "wire_bytes_sent": None, "step_seconds": 0.5, "exposed_seconds": 0.25}
    with RunLog(folder, config, 2, 0, 0, EventReader(EventLog()), RunTracking(folder, {}, 2, 10)) as log:
        log.step(_STEP | {"sites": {"paris": site}})
        log.write("end", {"step": 1, "complete": False})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [e.value for e in events.Scalars("step/loss")] == [2.5]
    assert [e.value for e in events.Scalars("site-paris/tokens_per_second")] == [7.0]
    assert "site-paris/wire_bytes_sent" not in events.Tags()["scalars"]
    (verdict,) = events.Tensors("verdict/text_summary")
    assert b"stopped after step 1 of 2" in verdict.tensor_proto.string_val[0]


def test_step_summary_without_wire_counters_leaves_them_out() -> None:
    assert "sent" in step_summary(_STEP)
    assert "sent" not in step_summary(_STEP | {"wire_bytes_sent": None, "exposed_seconds": None})


def test_rest_time_is_that_of_the_last_steps_with_all_between_them() -> None:
    clock = iter([0.0, 100.0, *(100.0 + 3.0 * step for step in range(1, 30))])
    rest = RestTime(lambda: next(clock))
    rest.count(10)
    assert rest.text(90) == ""
    rest.count(11)
    assert rest.text(90) == "  2 h left"
    for step in range(12, 41):  # the slow first step is out of sight
        rest.count(step)
    assert rest.text(20) == "  60 s left"
    assert rest.text(0) == ""
