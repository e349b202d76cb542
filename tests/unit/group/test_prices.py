"""Prices of what crosses between regions: what a file says of them, what a plan and reduce="auto" make of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from geocomm.core.errors import InvalidArgumentError
from geocomm.core.link_table import Links
from geocomm.group.planning.codec_choice import Speed
from geocomm.group.planning.local_estimate import WORTH_TIMES, chosen_reduce, local_estimate
from geocomm.group.planning.run_estimate import Workload, estimate
from support.command_tree import APP

INSTANT = Speed(0.0, 0.0)
DAY_S = 86_400
MATRIX = """
sites = ["a", "b", "c", "d"]
[default]
rate = "1gbit"
rtt = "100ms"
[prices]
a = 0.02
d = 0.09
"""


def links(sites: int, price: float | None, rate_bps: float = 1e9, rtt_s: float = 0.1, **rest: object) -> Links:
    prices = None if price is None else (price,) * sites
    names = [f"s{place}" for place in range(sites)]
    return Links.uniform(names, rate_bps, rtt_s, dollars_per_gb=prices, **rest)


def file_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "links.toml"
    path.write_text(text)
    return path


def test_a_file_names_prices_and_json_keeps_them(tmp_path: Path) -> None:
    table = Links.from_file(file_of(tmp_path, MATRIX))
    assert table.dollars_per_gb == (0.02, 0.0, 0.0, 0.09)
    assert Links.from_dict(json.loads(json.dumps(table.to_dict())), "here") == table
    assert table.select("da").dollars_per_gb == (0.09, 0.02)


def test_tables_differ_by_their_prices_and_earlier_ones_keep_their_names() -> None:
    assert links(3, None).digest() == Links.uniform(["s0", "s1", "s2"]).digest()
    assert len({links(3, price).digest() for price in (None, 0.0, 0.1)}) == 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [("g = 0.1", r"\[prices\]: unknown site 'g'; sites are a, b, c, d"), ("b = -0.1", "prices"), ("b = nan", "prices")],
)
def test_prices_that_cannot_be_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        Links.from_file(file_of(tmp_path, MATRIX + text))
    with pytest.raises(InvalidArgumentError, match="dollars_per_gb: expected 3 prices, 0 or more"):
        Links.uniform("abc", dollars_per_gb=(0.1, -0.1, 0.0))


def test_dollars_are_of_what_crosses_between_regions() -> None:
    work = Workload(1e9, 8, 1.0)
    alone = local_estimate(work, links(4, 0.05), "none", INSTANT, every=300)
    assert alone.dollars_per_day == pytest.approx(alone.egress_bytes_per_day / 1e9 * 0.05)
    near = local_estimate(work, links(4, 0.05, regions=("x", "x", "y", "y")), "none", INSTANT, every=300)
    assert near.between_regions_bytes_per_day is not None
    assert near.dollars_per_day == pytest.approx(near.between_regions_bytes_per_day / 1e9 * 0.05)
    assert near.between_regions_bytes_per_day < alone.egress_bytes_per_day
    step = estimate(work, links(4, 0.05), "none", INSTANT)
    assert step.dollars_per_day == pytest.approx(step.egress_bytes_per_day / 1e9 * 0.05)
    assert local_estimate(work, links(4, None), "none", INSTANT).dollars_per_day is None


def test_a_price_for_all_bytes_goes_before_those_of_the_links() -> None:
    row = local_estimate(Workload(1e9, 8, 1.0, dollars_per_gb=1.0), links(4, 0.05), "none", INSTANT)
    assert row.dollars_per_day == pytest.approx(row.egress_bytes_per_day / 1e9)


# Four sites: an aggregator has three exchanges for two, and half of the bytes.
def test_where_latency_is_the_round_dollars_decide_for_an_aggregator() -> None:
    free, dear = (chosen_reduce(1e6, links(4, price, 1e10), "int8") for price in (None, 0.01))
    assert (free.reduce, dear.reduce) == ("all", "aggregator")
    assert (free.all_s, free.aggregator_s) == (dear.all_s, dear.aggregator_s)
    assert free.aggregator_s > free.all_s
    assert free.all_dollars is None
    assert dear.all_dollars is not None
    assert dear.aggregator_dollars == pytest.approx(dear.all_dollars / 2)
    assert "by the links and their prices alone" in str(dear)
    assert "$" in str(dear)
    assert "$" not in str(free)
    assert chosen_reduce(1e6, links(4, 0.0, 1e10), "int8") == free


def test_three_sites_save_too_little_where_latency_is_the_round() -> None:
    choice = chosen_reduce(1e6, links(3, 0.01, 1e10), "int8")
    assert choice.all_dollars is not None
    assert choice.aggregator_dollars is not None
    part = choice.aggregator_s / choice.all_s * choice.aggregator_dollars / choice.all_dollars
    assert choice.aggregator_dollars < choice.all_dollars
    assert (choice.reduce, part > WORTH_TIMES) == ("all", True)


def test_two_sites_and_codecs_with_feedback_stay_with_all() -> None:
    assert chosen_reduce(1e9, links(2, 0.5), "int8").reduce == "all"
    assert chosen_reduce(1e9, links(8, 0.5), "topk").reduce == "all"


def test_plan_has_the_dollars_of_the_file(tmp_path: Path) -> None:
    path = file_of(tmp_path, MATRIX)
    command = ["plan", "--parameters", "7b", "--links", str(path), "--codec", "int8", "--mode", "local"]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(APP, [*command, "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["local_rows"]
    assert rows[0]["dollars_per_day"] == pytest.approx(rows[0]["egress_bytes_per_day"] / 4 / 1e9 * 0.11)
    text = CliRunner(env={"COLUMNS": "200"}).invoke(APP, command).stdout
    assert "by the links and their prices alone" in text
