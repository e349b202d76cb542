"""The benchmark's arithmetic and verdicts, on numbers written here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from typer.testing import CliRunner

from geocomm.lab.bench.bench_report import Conditions
from geocomm.lab.bench.wan_bench import (
    GLOO,
    BenchError,
    WanBenchPlan,
    WanRow,
    describe_link,
    floor_s,
    paired_ratio,
    verify_operation,
)
from geocomm.lab.bench.wan_bench_report import BenchSection, markdown, read_results, row_cells, verdict, write_results
from geocomm.lab.bench.wan_bench_worker import Reference, rank_input
from geocomm.lab.emulator.emulated_links import EmulatedLink
from support.command_tree import APP

GIGABIT = EmulatedLink(rate_bps=1e9, delay_s=0.05)
PLAN = WanBenchPlan(("none", GLOO), (4096,), repeats=1, warmup=0, pause_s=0, interleave=True, seed=3)


def row(**changes: Any) -> WanRow:
    values: dict[str, Any] = {
        "link": "L",
        "sites": 2,
        "case": "none",
        "size_bytes": 1 << 20,
        "times_s": (0.3, 0.1, 0.2),
        "voided": 1,
        "void": False,
        "floor_s": 0.1,
        "wire_bytes": 2e6,
        "nmse": 0.0,
        "max_lateness_s": 0.001,
    }
    return WanRow(**values | changes)


def lines(**changes: Any) -> list[dict[str, Any]]:
    good = {"case": "none", "size_bytes": 4, "digest": "a", "exact": True, "nmse": 0.0}
    return [good, good | changes]


def test_floor_two_sites_is_serialization_and_one_delay() -> None:
    assert floor_s(125_000_000, 2, GIGABIT) == pytest.approx(1.05)


def test_floor_many_sites_is_the_cheaper_scheme() -> None:
    small, large = 1000, 125_000_000
    assert floor_s(small, 4, GIGABIT) == pytest.approx(0.050008)
    assert floor_s(large, 4, GIGABIT) == pytest.approx(0.5 + 0.1)


def test_row_ratio_is_median_over_floor_or_paired_gloo() -> None:
    assert row().ratio == pytest.approx(2.0)
    assert row(floor_s=None, gloo_ratio=1.01).ratio == 1.01
    assert paired_ratio([2.0, 9.0, 4.0], [1.0, 9.0, 4.0]) == 1.0


def test_verify_accepts_equal_exact_results() -> None:
    verify_operation(lines())


@pytest.mark.parametrize(
    "broken",
    [{"digest": "b"}, {"exact": False}, {"case": GLOO, "exact": False}],
)
def test_verify_wrong_exact_result_raises(broken: dict[str, Any]) -> None:
    wrong = lines(**broken)
    if "case" in broken:
        wrong[0] = wrong[0] | {"case": broken["case"]}
    with pytest.raises(BenchError):
        verify_operation(wrong)


@pytest.mark.parametrize("nmse", [2e-4, float("nan")])
def test_verify_lossy_result_beyond_its_bound_raises(nmse: float) -> None:
    good = {"case": "int8:block=128", "size_bytes": 4, "digest": "a", "exact": False, "nmse": 5e-5}
    verify_operation([good, good])
    with pytest.raises(BenchError):
        verify_operation([good, good | {"nmse": nmse}])


def test_inputs_differ_by_rank_and_repeat_by_seed() -> None:
    assert torch.equal(rank_input(PLAN, 0, 4096), rank_input(PLAN, 0, 4096))
    assert not torch.equal(rank_input(PLAN, 0, 4096), rank_input(PLAN, 1, 4096))


@pytest.mark.parametrize("world_size", [2, 3])
def test_reference_one_wrong_element_is_not_exact(world_size: int) -> None:
    reference = Reference.of(PLAN, world_size, 4096)
    total = sum((rank_input(PLAN, rank, 4096) for rank in range(world_size)), torch.zeros(1024))
    assert reference.is_exact(total, world_size)
    assert reference.nmse(total) == 0
    total[17] += 1e-3
    assert not reference.is_exact(total, world_size)
    assert reference.nmse(total) == pytest.approx(1e-6 / float(reference.total.double().square().sum()), rel=1e-3)


def test_reference_other_order_of_three_is_exact_enough() -> None:
    total = rank_input(PLAN, 2, 4096) + rank_input(PLAN, 1, 4096) + rank_input(PLAN, 0, 4096)
    assert Reference.of(PLAN, 3, 4096).is_exact(total, 3)


def test_plan_rounds_interleave_or_finish_each_case() -> None:
    assert list(PLAN.rounds()) == [(4096, ("none", GLOO))]
    apart = WanBenchPlan(PLAN.cases, PLAN.sizes_bytes, 1, 0, 0, interleave=False, seed=3)
    assert list(apart.rounds()) == [(4096, ("none",)), (4096, (GLOO,))]


def test_report_says_conditions_and_missed_targets(tmp_path: Path) -> None:
    conditions = Conditions.here("geocomm bench wan --sizes 1MiB")
    missed = row(target=1.4)
    text = markdown([BenchSection("a link", conditions, (missed, row(target=2.5)))])
    assert "MISSED" in row_cells(missed)[9]
    assert [verdict(r) for r in (missed, row(target=2.5), row(target=2.5, void=True))] == ["MISSED", "met", "void"]
    assert conditions.command in text
    assert conditions.machine in text
    sections = [
        BenchSection("a link", conditions, (missed,)),
        BenchSection("another", conditions, (row(descriptors=9),)),
    ]
    path = write_results(sections, tmp_path / "new" / "today-wan.md")
    assert path.read_text().startswith("# ")
    document = json.loads(path.with_suffix(".json").read_text())
    assert document["sections"][0]["rows"][0]["ratio"] == pytest.approx(2.0)
    assert read_results(path) == sections
    assert read_results(tmp_path / "none.md") == []


def test_row_over_tls_or_paced_says_so_and_reports_from_before_there_was_tls_are_read() -> None:
    encrypted = row(encrypted=True)
    shown = [row_cells(one)[2] for one in (row(), encrypted, row(pacing=0.98))]
    assert shown == ["geocomm none", "geocomm none, TLS", "geocomm none, paced at 0.98"]
    read = TypeAdapter(WanRow).validate_python
    assert read(encrypted.to_dict()) == encrypted
    old = {name: value for name, value in row().to_dict().items() if name != "encrypted"}
    assert read(old) == row()
    with pytest.raises(ValidationError):
        read({name: value for name, value in old.items() if name != "case"})


def test_link_description_has_rate_delay_and_loss() -> None:
    assert describe_link(GIGABIT) == "1 Gbit/s, 100 ms RTT, no loss"
    assert describe_link(EmulatedLink(rate_bps=2e8, delay_s=0.15, loss=0.005)) == "200 Mbit/s, 300 ms RTT, 0.5 % loss"


@pytest.mark.parametrize("arguments", [["--codecs", "zip"], ["--rate", "fast"], ["--sizes", "3"], ["--sizes", "x"]])
def test_command_line_bad_value_exits_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(APP, ["bench", "wan", *arguments])
    assert result.exit_code == 2
