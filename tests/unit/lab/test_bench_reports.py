"""What the benchmarks of training and of cost conclude from their measurements."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from bench_cost import ONE_SITE, TWO_SITES, CostError, Row, row_of
from bench_train_report import Quality, Report, StepTime, write_report

from geocomm.lab.bench.bench_report import BY_HAND, Conditions, write_pair
from geocomm.lab.emulator.emulated_links import EmulatedLink

LINK = EmulatedLink(rate_bps=2e8, delay_s=0.05, loss=0.001)


def quality(method: str, *losses: float) -> Quality:
    return Quality.of(method, [{"parameters": 10, "held_out": [(100 * (i + 1), x) for i, x in enumerate(losses)]}] * 2)


def step_time(method: str, step_s: float, compute_s: float = 1.0, communication_s: float | None = None) -> StepTime:
    return StepTime(method, 10, step_s, compute_s, 0.5 * compute_s, communication_s, 30)


def report(qualities: list[Quality], times: list[StepTime]) -> Report:
    return Report(Conditions("", "", "", "", "", "", ""), LINK, 300, qualities, times, {})


def test_the_steps_to_a_loss_lie_between_evaluations() -> None:
    curve = quality("exact", 4.0, 3.0, 2.0)
    assert curve.steps_to(2.5) == pytest.approx(250)
    assert curve.steps_to(4.0) == 100
    assert curve.steps_to(1.9) is None


def test_time_to_the_loss_is_what_the_slowest_learner_reaches() -> None:
    made = report([quality("exact", 4.0, 2.0), quality("small", 4.0, 3.0)], [step_time("gloo", 10.0)])
    assert made.common_loss == 3.0
    assert made.seconds_to_loss(step_time("gloo", 10.0)) == pytest.approx(1500)  # exact sums: 150 steps
    assert made.seconds_to_loss(step_time("small", 1.0)) == pytest.approx(200)


def test_the_report_says_what_is_missed_and_what_computing_bounds(tmp_path: Path) -> None:
    exact, small = quality("exact", 4.0, 2.0), quality("small", 4.0, 2.1)
    times = [step_time("gloo", 10.0), step_time("exact", 4.0), step_time("small", 1.0, communication_s=0.2)]
    text = write_report(report([exact, small], times), tmp_path / "train.md").read_text(encoding="utf-8")
    rows = {line.split(" | ")[0].lstrip("| "): line for line in text.splitlines() if " | " in line}
    assert "≤ 1.0%: MISSED" in next(line for line in text.splitlines() if line.startswith("| small | 2.1"))
    assert "≥ 3.0: MISSED" in next(line for line in text.splitlines() if line.startswith("| exact | 4.00 | 1.00"))
    # 12 times is more than computing allows: with communication in no time it would be less than 10 times.
    assert ": met" in next(line for line in text.splitlines() if line.startswith("| small | 1.00 | 1.00 | 200"))
    assert "≤ 1.25: met" in rows["small"]
    assert (tmp_path / "train.png").exists()
    assert (tmp_path / "train.json").exists()


def cost_lines(geocomm_s: float, equal: bool = True) -> list[dict]:
    sample = {"gloo": [(0.0, 0.4)] * 5, "geocomm": [(0.0, 4 * geocomm_s)] * 5}
    return [{"case": "all_reduce", "size_bytes": 1 << 20, "in_sample": 4, "equal": equal, "times": sample}] * 2


def test_cost_is_the_median_of_pairs() -> None:
    row = row_of(TWO_SITES, cost_lines(0.2))
    assert row.gloo_s == pytest.approx(0.1)
    assert math.isclose(row.ratio, 2.0)
    assert row.verdict == "≤ 1: MISSED"
    assert row_of(ONE_SITE, cost_lines(0.101)).verdict == "≤ 1.02: met"


def test_a_miss_within_the_noise_is_told_from_a_miss() -> None:
    noisy = Row(ONE_SITE, "broadcast", 1024, 1.0, 1.05, 1.05, 0.95, 1.2, 15)
    assert noisy.verdict == "≤ 1.02: within noise"


def test_a_result_that_is_not_gloos_is_an_error() -> None:
    with pytest.raises(CostError, match="differs from Gloo's"):
        row_of(TWO_SITES, cost_lines(0.1, equal=False))


def test_a_report_that_is_written_again_keeps_what_was_added_by_hand(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "new" / "report.md", "# First\n", {})
    assert path.read_text(encoding="utf-8") == "# First\n"
    added = f"\n{BY_HAND}\n\n## Another machine\n\nIt took 3 s.\n"
    path.write_text("# First\n" + added, encoding="utf-8")
    write_pair(path, "# Second\n", {"rows": []})
    assert path.read_text(encoding="utf-8") == "# Second\n" + added
