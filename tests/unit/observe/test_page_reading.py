"""What the page keeps of a run store between two looks is what it would read anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from geocomm.observe.dashboard.page_state import MOST_LINES, Curves, LastSteps
from geocomm.observe.telemetry.report import Report
from geocomm.observe.telemetry.run_store import RunStore
from support.recorded_run import record
from support.reports import keep

BEGIN = 1_700_000_000.0


def report(sequence: int, step: int, rank: int = 0, process: int = 0) -> Report:
    row = {"step": step, "ended_ns": sequence, "seconds": step / 10, "exposed_seconds": rank / 10}
    own = {"site": "a", "rank": rank, "process": f"{process:016x}", "sequence": sequence, "time": 0.0, "now_ns": 0}
    return Report.model_validate({**own, "steps": [row]})


@pytest.mark.parametrize("seconds", [30.0, 400.0])
def test_curves_that_are_read_on_are_those_that_are_read_at_once(tmp_path: Path, seconds: float) -> None:
    store = RunStore(record(tmp_path / "telemetry", 2, 2, BEGIN, 500))
    curves = Curves(store)
    for until in (100.0, 101.5, 250.0, 499.5):
        curves.read(BEGIN + max(0.0, until - seconds), BEGIN + until)
    read_on = curves.read(BEGIN + 500 - seconds, BEGIN + 500)
    at_once = Curves(store).read(BEGIN + 500 - seconds, BEGIN + 500)
    assert read_on["times"] == at_once["times"]
    for group, name in (("sites", "loss"), ("sites", "step_seconds"), ("links", "bytes_per_second")):
        for key, series in at_once[group].items():
            assert series[name][1:] == read_on[group][key][name][1:]  # the first has none before it where it is read
    assert len(at_once["times"]) >= 30


def test_of_many_links_the_busiest_have_curves(tmp_path: Path) -> None:
    store = RunStore(record(tmp_path / "telemetry", 6, 1, BEGIN, 30))
    found = Curves(store).read(BEGIN, BEGIN + 30)
    assert (found["of_sites"], found["of_links"], len(found["links"])) == (6, 30, MOST_LINES)
    sent = {
        f"{last.report.site} > {peer['site']}": peer["bytes_sent"]
        for last in store.latest()
        for peer in last.report.stats["peers"]
    }
    busiest = sorted(sent, key=lambda link: -sent[link])[:MOST_LINES]
    assert set(found["links"]) == set(busiest)


def test_last_steps_are_medians_of_ranks_and_go_on_after_a_restart_at_an_earlier_step(tmp_path: Path) -> None:
    store = RunStore(tmp_path, write=True)
    steps = LastSteps(store)
    for step in range(100):
        keep(store, report(step, step), float(step))
        keep(store, report(step, step, rank=1), step + 0.5)
    shown = steps.read(100.0)["a"]
    assert [row["step"] for row in shown] == list(range(40, 100))
    assert shown[-1] == {"step": 99, "at": 99.25, "seconds": 9.9, "exposed_seconds": 0.05}
    for number, step in enumerate((90, 91)):
        keep(store, report(number, step, process=1), 101.0 + number)
    shown = steps.read(103.0)["a"]
    assert [row["step"] for row in shown[-3:]] == [99, 90, 91]
    assert len(shown) == 60
