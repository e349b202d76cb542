"""`geocomm plan`: the arithmetic, and what the command refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from plan_against_wan import compare, links_of, table
from typer.testing import CliRunner

from geocomm.core.link_table import Links
from geocomm.group.planning.codec_choice import Speed
from geocomm.group.planning.run_estimate import OPERATION_S, Workload, estimate, scaled
from geocomm.lab.bench.bench_report import Conditions
from geocomm.lab.bench.wan_bench import WanRow, describe_link
from geocomm.lab.bench.wan_bench_report import BenchSection
from geocomm.lab.emulator.emulated_links import EmulatedLink
from support.command_tree import APP

INSTANT = Speed(0.0, 0.0)


def links(sites: int = 2, rate_bps: float = 1e9, rtt_s: float = 0.1) -> Links:
    return Links.uniform([f"s{index}" for index in range(sites)], rate_bps, rtt_s)


def test_two_sites_take_the_bytes_over_the_rate_and_a_latency() -> None:
    work = Workload(parameters=125e6, ranks_per_site=1, compute_s=1.0)
    row = estimate(work, links(), "none", INSTANT)
    assert row.sent_bytes == row.wire_bytes == 500e6
    assert row.exchange_s == pytest.approx(4.05 + 8 * OPERATION_S)
    assert row.step_s == pytest.approx(1 + row.exchange_s)
    assert row.compute_share == pytest.approx(1 / row.step_s)
    assert row.link_share == pytest.approx(4.0 / row.step_s)
    assert row.egress_bytes_per_step == 1e9
    assert row.egress_bytes_per_day == pytest.approx(1e9 * 86400 / row.step_s)
    assert row.dollars_per_day is None


def test_every_64_mib_of_a_rank_that_begin_are_an_operation() -> None:
    whole, more, ranks = (
        estimate(Workload(parameters, ranks_per_site, 1.0), links(), "none", INSTANT).exchange_s
        for parameters, ranks_per_site in ((1 << 24, 1), ((1 << 24) + 1, 1), (1 << 25, 2))
    )
    assert more - whole == pytest.approx(OPERATION_S, rel=1e-3)
    assert ranks - whole == pytest.approx((1 << 24) * 4 * 8 / 1e9)


def test_owners_move_two_thirds_of_what_broadcasting_would_with_three_sites() -> None:
    work = Workload(parameters=1e9, ranks_per_site=1000, compute_s=1.0, dollars_per_gb=0.05)
    row = estimate(work, links(3), "none", INSTANT)
    assert row.owners
    assert row.sent_bytes == pytest.approx(4e9 * 4 / 3, rel=1e-3)
    assert row.sent_per_rank_bytes == row.sent_bytes / 1000
    assert row.egress_bytes_per_step == 16e9
    assert row.dollars_per_day == pytest.approx(row.egress_bytes_per_day / 1e9 * 0.05)


def test_hiding_shortens_the_step() -> None:
    plain, half = (estimate(Workload(1e9, 8, 10.0, hidden=part), links(), "int8", INSTANT) for part in (0.0, 0.5))
    assert half.exchange_s == plain.exchange_s
    assert half.step_s == pytest.approx(plain.step_s - 5)
    hidden = estimate(Workload(1e9, 8, 10.0, hidden=1.0), links(), "int8", INSTANT)
    assert hidden.exposed_s == 0
    assert hidden.compute_share == 1


def test_slow_coding_takes_longer_than_the_link() -> None:
    work = Workload(parameters=1e9, ranks_per_site=1, compute_s=1.0)
    assert estimate(work, links(), "int8", Speed(1e-8, 1e-8)).exchange_s > 4e9 * 3e-8
    many = Workload(parameters=1e9, ranks_per_site=1000, compute_s=1.0)
    assert estimate(many, links(), "int8", Speed(1e-8, 1e-8)).exchange_s < 10


def test_use_of_an_access_line_counts_what_goes_over_all_links() -> None:
    work = Workload(parameters=1e9, ranks_per_site=8, compute_s=1.0)
    shared = Links.uniform(("a", "b", "c"), 1e12, 0.1, up_bps=(1e9,) * 3, down_bps=(1e9,) * 3)
    row = estimate(work, shared, "none", INSTANT)
    assert row.link_share == pytest.approx(8 * row.sent_bytes / 1e9 / row.step_s)
    assert 0.9 < row.link_share < 1


def test_efficiency_scales_rates_and_limits() -> None:
    limited = Links.uniform(("a", "b"), 1e9, 0.1, up_bps=(1e9, 1e9))
    half = scaled(limited, 0.5)
    assert half.rate_bps[0][1] == 5e8
    assert half.up_bps == (5e8, 5e8)
    assert half.down_bps is None


def test_command_prints_16_sites_of_1000_ranks_as_json() -> None:
    arguments = [
        "plan",
        "--parameters",
        "7b",
        "--sites",
        "16",
        "--ranks",
        "1000",
        "--rate",
        "10gbit",
        "--price",
        "0.02",
    ]
    result = CliRunner().invoke(APP, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert len(document["conditions"]["links"]["sites"]) == 16
    rows = {row["codec"]: row for row in document["rows"]}
    assert len(rows) == 5
    assert rows["int8"]["wire_bytes"] == pytest.approx(7e9 * 1.0078, rel=1e-3)
    assert rows["small"]["step_s"] < rows["none"]["step_s"]
    assert rows["none"]["dollars_per_day"] > 0
    local = {row["codec"]: row for row in document["local_rows"]}
    assert 0 < local["int4"]["dollars_per_day"] < rows["small"]["dollars_per_day"]


def test_command_prints_a_table() -> None:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(APP, ["plan", "--parameters", "300m", "--codec", "int8"])
    assert result.exit_code == 0, result.output
    assert "int8" in result.stdout
    assert "broadcast" in result.stdout


def _plan(*arguments: str, columns: int = 80) -> str:
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(APP, ["plan", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_title_says_what_was_reckoned_with() -> None:
    text = _plan("--parameters", "7b", "--rate", "2gbit", "--access", "3gbit", "--rtt", "30ms", columns=200)
    assert "2 Gbit/s between each two sites, 3 Gbit/s a site's own line, round trip 0.03 s; tensors get 90% of " in text


def test_a_rate_alone_is_explained_where_it_could_be_meant_for_a_sites_line() -> None:
    warning = "add --access 1gbit"
    assert warning in _plan("--parameters", "7b", "--sites", "3", columns=200)
    assert warning not in _plan("--parameters", "7b", "--sites", "2", columns=200)
    assert warning not in _plan("--parameters", "7b", "--sites", "3", "--access", "1gbit", columns=200)


@pytest.mark.parametrize("size", ["7b", "671b", "300m"])
def test_a_table_of_80_columns_cuts_no_heading_and_no_number(size: str) -> None:
    arguments = ("--parameters", size, "--sites", "8", "--price", "0.05", "--access", "1gbit", "--codec", "none")
    text = _plan(*arguments)
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    cells = [line.split() for line in text.splitlines() if line.startswith("none ")]
    assert cells
    # With room to spare each row has the same words.
    assert cells == [line.split() for line in _plan(*arguments, columns=200).splitlines() if line.startswith("none ")]


def test_codecs_that_the_backend_refuses_are_not_listed() -> None:
    codecs = ("--codec", "int8", "--codec", "tiny")
    text = _plan("--parameters", "7b", *codecs, "--mode", "step", columns=200)
    assert not [line for line in text.splitlines() if line.startswith("tiny")]
    assert "not listed for every step: tiny" in text
    text = _plan("--parameters", "7b", *codecs, columns=200)
    assert len([line for line in text.splitlines() if line.startswith("tiny ")]) == 1, "local steps have error feedback"
    assert "not listed" not in _plan("--parameters", "7b")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--parameters", "7b", "--codec", "tiny", "--mode", "step"],
        ["--parameters", "7b", "--model", "tiny"],
        ["--parameters", "many"],
        ["--parameters", "0"],
        ["--model", "gpt"],
        ["--parameters", "7b", "--codec", "int9"],
        ["--parameters", "7b", "--rate", "fast"],
        ["--parameters", "7b", "--step-time", "0s"],
        ["--parameters", "7b", "--every", "0"],
        ["--parameters", "7b", "--mode", "never"],
        ["--parameters", "7b", "--element-bytes", "3"],
        ["--parameters", "7b", "--links", "/nowhere.json"],
    ],
)
def test_command_refuses_what_cannot_be(arguments: list[str]) -> None:
    result = CliRunner().invoke(APP, ["plan", *arguments])
    assert result.exit_code == 2, result.output


def test_a_slow_pair_meets_over_a_third_site_and_its_bytes_count_there() -> None:
    fast, slow = 1e9, 1e7
    rates = tuple(tuple(0.0 if i == j else slow if {i, j} == {0, 1} else fast for j in range(4)) for i in range(4))
    table = Links(("a", "b", "c", "d"), rates, links(4).rtt_s)
    assert ("a", "c", "b") in table.relays()
    work = Workload(parameters=1e9, ranks_per_site=8, compute_s=1.0)
    row = estimate(work, table, "none", INSTANT)
    assert ("a", "c", "b") in row.relays
    assert row.link_share < 1
    # The relay sends more than equal owners would, and no link is busier than the time says.
    assert row.sent_bytes > 4e9 * 1.5
    assert row.exchange_s < 4e9 * 8 / fast + 0.5
    assert estimate(work, links(4), "none", INSTANT).relays == ()


def measured(link: str, sites: int, case: str, seconds: float, **changes: Any) -> WanRow:
    values: dict[str, Any] = {"link": link, "sites": sites, "case": case, "times_s": (seconds,), "size_bytes": 1 << 26}
    values |= {"voided": 0, "void": False, "floor_s": 1.0, "wire_bytes": 1e6, "nmse": 0.0, "max_lateness_s": 0.0}
    return WanRow(**values | changes)


def test_measured_rows_stand_beside_the_plan_for_their_links() -> None:
    gigabit = describe_link(EmulatedLink(rate_bps=1e9, delay_s=0.05, loss=0.001))
    slow = describe_link(EmulatedLink(rate_bps=2e8, delay_s=0.15))
    rows = (
        measured(slow, 4, "none", 6.0),
        measured(gigabit, 2, "none", 1.3),
        measured(gigabit, 2, "gloo", 9.0),
        measured(gigabit, 2, "int8", 9.0, void=True),
    )
    old = BenchSection("a", Conditions.here("old"), (measured(gigabit, 2, "none", 99.0),))
    compared = compare([old, BenchSection("a", Conditions.here("new"), rows)])
    assert [one.row for one in compared] == [rows[1], rows[3], rows[0]]
    two, void, four = compared
    assert [one.remarks for one in compared] == ["0.1 % loss", "0.1 % loss", ""]
    assert two.plan_s == pytest.approx(8 * (1 << 26) / 9e8 + 0.05 + OPERATION_S, rel=0.02)
    assert four.plan_s == pytest.approx(8 * (1 << 26) / 2 / 1.8e8 + 0.3 + OPERATION_S, rel=0.02)
    assert (two.plan_bytes, four.plan_bytes) == (1 << 26, 1.5 * (1 << 26))
    assert two.ratio == pytest.approx(1.3 / two.plan_s)
    lines = table(compared).splitlines()[2:5]
    assert f"| {two.ratio:.2f} |" in lines[0]
    assert f"[{void.ratio:.2f}]" in lines[1]
    assert f"to {max(two.ratio, four.ratio):.2f}." in table(compared)


def test_measured_row_of_a_link_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match="a string"):
        links_of(measured("a string", 2, "none", 1.0))
