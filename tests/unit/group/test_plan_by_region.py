"""All-reduces by regions: what a plan says of them is what the backend does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from geocomm.core.link_table import Links, table_of
from geocomm.core.native import native
from geocomm.group.planning.codec_choice import Speed
from geocomm.group.planning.run_estimate import Workload, chosen_levels, estimate
from support.command_tree import APP

WORK = Workload(1e9, 8, 1.0)
INSTANT = Speed(0.0, 0.0)


def _links(regions: int, members: int, near_bps: float = 1e10, price: float | None = None) -> Links:
    """Named s0, s1, …; 1 Gbit/s and 80 ms between regions."""
    count = regions * members

    def is_near(src: int, dst: int) -> bool:
        return src // members == dst // members

    return Links(
        tuple(f"s{place}" for place in range(count)),
        table_of(count, lambda src, dst: near_bps if is_near(src, dst) else 1e9),
        table_of(count, lambda src, dst: 0.002 if is_near(src, dst) else 0.08),
        regions=tuple(str(place // members) for place in range(count)),
        dollars_per_gb=None if price is None else (price,) * count,
    )


def test_four_regions_of_eight_sites_send_an_eighth() -> None:
    choice = chosen_levels(WORK, _links(4, 8, price=0.02), "none")
    assert choice is not None
    assert choice.by_region
    assert choice.region_bytes == pytest.approx(6 * 4e9, rel=1e-3)
    assert choice.plain_bytes == pytest.approx(48 * 4e9, rel=1e-3)
    assert choice.region_s < 0.9 * choice.plain_s
    assert choice.region_dollars == pytest.approx(6 * 4 * 0.02, rel=1e-3)
    assert choice.plain_dollars == pytest.approx(8 * choice.region_dollars, rel=1e-3)
    assert "s by regions (24 GB between regions, $0.48), and " in str(choice)


def test_what_fsdp_takes_sends_once_to_each_region() -> None:
    links = _links(4, 8)
    scatter = chosen_levels(WORK, links, "none", "reduce_scatter")
    gather = chosen_levels(WORK, links, "int8", "all_gather")
    assert scatter is not None
    assert gather is not None
    # Each of 32 sites gets a sum of its part from three other regions, and each of its parameters goes to them.
    for choice in (scatter, gather):
        assert choice.by_region
        assert choice.region_bytes == pytest.approx(3 * 4e9, rel=1e-3)
        assert choice.plain_bytes == pytest.approx(24 * 4e9, rel=1e-3)
        assert choice.region_s < 0.5 * choice.plain_s


def test_prices_decide_where_times_are_alike() -> None:
    by_time, by_price = (chosen_levels(WORK, _links(2, 2, 2e9, price), "int8") for price in (None, 0.02))
    assert by_time is not None
    assert by_price is not None
    assert not by_time.by_region
    assert str(by_time).startswith("not by regions: by the links alone")
    assert by_price.by_region
    assert str(by_price).startswith("by regions: by the links and their prices alone")
    assert by_price.region_s == by_time.region_s


@pytest.mark.parametrize("price", [None, 0.02])
@pytest.mark.parametrize("near_bps", [1e9, 1e10])
def test_an_estimate_is_of_the_way_that_the_backend_takes(near_bps: float, price: float | None) -> None:
    links = _links(2, 3, near_bps, price)
    model = native().CostModel(6, links.for_native())
    for parameters in (1e4, 1e6, 1e9):
        row = estimate(Workload(parameters, 8, 1.0), links, "none", INSTANT)
        taken = model.choice(4 * parameters)
        assert (row.by_region, row.owners) == (taken["by_region"], bool(taken["shares"]))
        choice = chosen_levels(Workload(parameters, 8, 1.0), links, "none")
        assert choice is not None
        assert choice.by_region == row.by_region


def test_without_regions_nothing_is_said() -> None:
    links = _links(2, 3)
    for regions in (None, tuple("abcdef"), ("a",) * 6):
        plain = links.model_copy(update={"regions": regions})
        assert chosen_levels(WORK, plain, "none") is None
        assert not estimate(WORK, plain, "none", INSTANT).by_region


def test_plan_says_which_and_why(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    path.write_text(json.dumps(_links(4, 8).to_dict()))
    plan = ("plan", "--parameters", "1b", "--links", str(path), "--mode", "step", "--codec", "none")
    result = CliRunner(env={"COLUMNS": "250"}).invoke(APP, plan)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    for beginning in ("none, FSDP over all sites, each reduce-scatter: ", "FSDP over all sites, each all-gather: "):
        (line,) = (one for one in lines if one.startswith(beginning))
        assert line.startswith(f"{beginning}by regions: by the links alone, an exchange takes ")
        assert "(12 GB between regions)" in line
    (line,) = (one for one in lines if one.startswith("none, in every step: "))
    assert line.startswith("none, in every step: by regions: by the links alone, an exchange takes ")
    assert line.endswith("else (192 GB between regions)")
    assert "owners, regions" in result.stdout
