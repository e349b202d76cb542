"""Local steps in a plan: the schedule that the links allow, and what the command says of it."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from typer.testing import CliRunner

from geocomm.core.errors import InvalidArgumentError
from geocomm.core.link_table import Links
from geocomm.group.planning.codec_choice import Speed
from geocomm.group.planning.local_estimate import (
    AUTO_FRAGMENTS,
    LEAST_EVERY,
    LINE_SHARE,
    MOST_EVERY,
    LocalEstimate,
    Reduce,
    local_estimate,
)
from geocomm.group.planning.run_estimate import OPERATION_S, Workload
from geocomm.sync.local_steps.settings import local_settings
from geocomm.sync.local_steps.settings.local_settings import LocalSettings
from support.command_tree import APP

INSTANT = Speed(0.0, 0.0)


def over(rate_bps: float, *, parameters: float = 1e9, sites: int = 2, every: int | None = None) -> LocalEstimate:
    """Float32 deltas of 4e9 bytes, a round trip of 0.1 s, steps of a second."""
    links = Links.uniform([f"s{index}" for index in range(sites)], rate_bps, 0.1)
    return local_estimate(Workload(parameters, 8, compute_s=1.0), links, "none", INSTANT, every=every)


def test_a_round_takes_two_exchanges_and_its_bytes() -> None:
    row = over(1e9)
    assert row.fragments == AUTO_FRAGMENTS
    assert row.round_s == pytest.approx(32 / AUTO_FRAGMENTS + 2 * (0.1 + OPERATION_S))
    assert row.overlap == 3  # 1.54 s with some room


def test_every_is_the_smallest_whose_rounds_fit_under_the_steps() -> None:
    row = over(1e9)
    rounds_s = row.fragments * row.round_s
    assert row.fits
    assert rounds_s <= LINE_SHARE * row.every
    assert rounds_s > LINE_SHARE * (row.every - 1)
    assert row.fewer_bytes == pytest.approx(row.every)
    assert row.link_share == pytest.approx(32 / row.every)
    assert over(1e11).every == LEAST_EVERY
    assert over(1e9, every=7).every == 7
    assert not over(1e9, every=7).fits


def test_a_line_that_is_too_slow_makes_rounds_rarer_and_no_step_longer() -> None:
    row = over(1e7)
    assert (row.every, row.fits) == (MOST_EVERY, False)
    assert row.step_s == 1.0
    assert row.link_share < 1
    assert row.fewer_bytes > MOST_EVERY


def test_small_models_and_long_round_trips_have_fewer_fragments() -> None:
    assert over(1e9, parameters=1e6).fragments == 1
    assert over(1e9, parameters=1e7).fragments < over(1e9, parameters=1e8).fragments


@pytest.mark.parametrize("parameters", [1.5e7, 5e7, 1e8])
def test_fragments_are_as_many_as_have_rounds_of_four_round_trips(parameters: float) -> None:
    row = over(1e9, parameters=parameters)
    bytes_s = 32 * parameters / 1e9  # of all fragments
    around_s = 2 * (0.1 + OPERATION_S)
    assert 1 < row.fragments < AUTO_FRAGMENTS
    assert bytes_s / row.fragments + around_s >= 4 * 0.1 > bytes_s / (row.fragments + 1) + around_s


def test_every_other_site_gets_the_frames() -> None:
    two, four = over(1e9, every=100), over(1e9, sites=4, every=100)
    assert four.sent_bytes_per_step == pytest.approx(3 * two.sent_bytes_per_step)
    assert four.fewer_bytes == pytest.approx(two.fewer_bytes)


def test_ways_to_reduce_are_those_of_the_settings() -> None:
    assert get_args(Reduce) == get_args(local_settings.Reduce)
    assert get_args(LocalSettings.model_fields["reduce"].annotation)[-1] == local_settings.Auto


def test_with_an_aggregator_bytes_hardly_grow_with_the_sites() -> None:
    def row(sites: int) -> LocalEstimate:
        links = Links.uniform([f"s{index}" for index in range(sites)], 1e9, 0.1)
        work = Workload(1e9, 8, compute_s=1.0)
        return local_estimate(work, links, "none", INSTANT, every=100, reduce="aggregator")

    for sites in (2, 4, 16):
        assert row(sites).sent_bytes_per_step == pytest.approx(2 * (sites - 1) / sites * 4e9 / 100)
    assert row(2).sent_bytes_per_step == pytest.approx(over(1e9, every=100).sent_bytes_per_step)
    assert row(16).round_s == pytest.approx(32 * 2 / 16 / AUTO_FRAGMENTS + 3 * (0.1 + OPERATION_S))


def test_interval_below_one_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="--every"):
        over(1e9, every=0)
    assert over(1e9, every=1).every == 1


def _plan(*arguments: str) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(APP, ["plan", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_command_says_which_mode_wins() -> None:
    slow = _plan("--parameters", "7b", "--rate", "1gbit")
    assert "Local steps, int4, every" in slow
    fast = _plan("--parameters", "1m", "--rate", "100gbit", "--rtt", "1ms", "--step-time", "10s")
    assert "Reduce in every step, with" in fast
    eight = ("--parameters", "7b", "--sites", "8", "--access", "1gbit")
    assert "Local steps, int4, aggregator, every" in _plan(*eight, "--codec", "int4")
    assert "int4, reduce='auto': aggregator: by the links" in _plan(*eight, "--codec", "int4", "--mode", "local")
    assert "aggregator" not in _plan(*eight, "--codec", "topk", "--mode", "local")
    held = _plan("--parameters", "7b", "--rate", "10mbit", "--mode", "local")
    assert "the line is too slow for a round every 300 steps" in held


@pytest.mark.parametrize(
    ("mode", "steps", "local"), [("auto", True, True), ("step", True, False), ("local", False, True)]
)
def test_mode_chooses_the_tables(mode: str, steps: bool, local: bool) -> None:
    document = json.loads(_plan("--parameters", "7b", "--mode", mode, "--codec", "int8", "--json"))
    assert (bool(document["rows"]), bool(document["local_rows"])) == (steps, local)
