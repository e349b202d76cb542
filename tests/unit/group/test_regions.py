"""Regions: who adds up and passes on, what a file says of them, what a plan makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from geocomm.cli.run_options import leader_settings
from geocomm.core.bad_input import BadInput
from geocomm.core.errors import InvalidArgumentError
from geocomm.core.link_table import Links
from geocomm.group.planning.codec_choice import Speed
from geocomm.group.planning.local_estimate import Reduce, between_regions_alone, local_estimate
from geocomm.group.planning.regions import Regions
from geocomm.group.planning.run_estimate import Workload
from support.command_tree import APP

SITES = tuple("abcdef")
REGIONS = Regions(SITES, (("a", "b", "c"), ("d", "e"), ("f",)))
MATRIX = """
sites = ["a", "b", "c", "d", "e", "f"]
[default]
rate = "1gbit"
rtt = "100ms"
[regions]
east = ["a", "b", "c"]
west = ["d", "e"]
"""


def _regions(of: list[int]) -> Regions:
    """Of sites that are named after their places: the number of the region of each."""
    names = [f"s{place}" for place in range(len(of))]
    groups = {region: [name for name, one in zip(names, of, strict=True) if one == region] for region in of}
    return Regions(names, tuple(map(tuple, groups.values())))


def test_heads_take_turns_and_pass_on_what_comes_from_other_regions() -> None:
    assert [REGIONS.head("a", far) for far in "def"] == ["a", "b", "c"]
    assert [REGIONS.head("d", far) for far in "abcf"] == ["d", "e", "d", "e"]
    assert REGIONS.head("a", "b") == "b"
    assert [(over, to) for far, over, to in REGIONS.relays() if far == "f"] == [("c", "a"), ("c", "b"), ("e", "d")]
    assert not Regions(SITES).relays()


def test_a_head_adds_up_its_region_and_the_aggregator_all() -> None:
    assert REGIONS.adders("b") == ["e", "b"]
    assert [*REGIONS.parts("e", "b").items()] == [("d", ("d",)), ("e", ("e",))]
    assert [*REGIONS.parts("b", "b").values()] == [("a",), ("b",), ("c",), ("d", "e"), ("f",)]
    assert [*REGIONS.parts("b", "b")] == ["a", "b", "c", "e", "f"]
    assert Regions(SITES).adders("c") == ["c"]


@given(of=st.lists(st.integers(0, 3), min_size=2, max_size=9))
def test_each_delta_is_added_up_once_and_each_site_gets_the_average_once(of: list[int]) -> None:
    regions = _regions(of)
    for aggregator in regions.sites:
        sums = {site: [site] for site in regions.sites}
        for adder in regions.adders(aggregator):
            parts = regions.parts(adder, aggregator)
            own = [site for site in regions.sites if regions.adder(site, aggregator) == adder]
            assert own == [part[0] for part in parts.values() if len(part) == 1]
            sums[adder] = [one for sender in parts for one in sums[sender]]
        assert sorted(sums[aggregator]) == sorted(regions.sites)
        over = {site: head for far, head, site in regions.relays() if far == aggregator}
        crossed = [site for site in regions.sites if site not in regions.of(aggregator) and site not in over]
        assert len(crossed) == len({regions.of(site) for site in regions.sites}) - 1
        assert all(head in crossed and site in regions.of(head) for site, head in over.items())


@given(of=st.lists(st.integers(0, 2), min_size=3, max_size=8), reduce=st.sampled_from(get_args(Reduce)))
def test_regions_never_cross_more(of: list[int], reduce: Reduce) -> None:
    names = [f"s{place}" for place in range(len(of))]
    links = Links.uniform(names, 1e9, 0.1, regions=tuple(map(str, of)))
    if links.by_region():
        assert between_regions_alone(links, reduce) >= 1.0


def test_bytes_between_regions_are_those_of_a_site_for_each() -> None:
    links = Links.uniform([f"s{place}" for place in range(32)], 1e9, 0.1, regions=tuple(str(n // 8) for n in range(32)))
    assert between_regions_alone(links, "all") == pytest.approx(8)
    assert between_regions_alone(links, "aggregator") == pytest.approx(8)
    row = local_estimate(Workload(1e9, 8, 1.0), links, "none", Speed(0.0, 0.0), every=300, reduce="aggregator")
    assert row.fits
    assert row.between_regions_bytes_per_day == pytest.approx(2 * 3 * 4e9 * 86_400 / 300)  # two frames a region


@pytest.mark.parametrize(
    ("regions", "groups"),
    [
        (("x", "x", "y"), (("a", "b"), ("c",))),
        (("", "x", "x"), (("a",), ("b", "c"))),
        (("x", "x", "x"), ()),
        (("", "", ""), ()),
        (("x", "y", ""), ()),
        (None, ()),
    ],
)
def test_regions_count_where_one_has_several_sites_and_another_one_is_there(
    regions: tuple[str, ...] | None, groups: tuple[tuple[str, ...], ...]
) -> None:
    links = Links.uniform("abc", regions=regions)
    assert links.by_region() == groups
    assert Links.from_dict(json.loads(json.dumps(links.to_dict())), "here").by_region() == groups
    assert links.select("ba").by_region() == ()


def test_regions_are_found_by_round_trips() -> None:
    rtt = [[0, 0.004, 0.012, 0.1], [0.004, 0, 0.009, 0.1], [0.012, 0.009, 0, 0.1], [0.1, 0.1, 0.1, 0]]
    links = Links(SITES[:4], ((1e9,) * 4,) * 4, tuple(map(tuple, rtt)))
    assert links.with_near_regions().regions == ("near-a", "near-a", "near-a", "")  # b is near to both
    assert Links.uniform("abc", rtt_s=0.1).with_near_regions().regions is None
    assert Links.uniform("abc", rtt_s=0.001).with_near_regions().regions is None


def test_a_file_names_regions(tmp_path: Path) -> None:
    path = tmp_path / "links.toml"
    path.write_text(MATRIX)
    assert Links.from_file(path).by_region() == REGIONS.groups


def test_the_leader_of_an_elastic_run_takes_the_regions_of_the_links_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GEOCOMM_LINKS", raising=False)
    assert leader_settings("", 1, "", 0, 0.0, 60).regions == ()
    path = tmp_path / "links.toml"
    monkeypatch.setenv("GEOCOMM_LINKS", str(path))
    path.write_text(MATRIX)
    assert leader_settings("", 1, "", 0, 0.0, 60).regions == (("a", "b", "c"), ("d", "e"))
    path.write_text('sites = ["a", "b"]\n[regions]\neast = ["a", "b"]\n')  # others may come
    assert leader_settings("", 1, "", 0, 0.0, 60).regions == (("a", "b"),)
    path.write_text(MATRIX + 'north = ["g"]')
    with pytest.raises(BadInput, match=r"GEOCOMM_LINKS: links: .*unknown site 'g'"):
        leader_settings("", 1, "", 0, 0.0, 60)
    path.unlink()
    with pytest.raises(BadInput, match=r"GEOCOMM_LINKS: .*links\.toml"):
        leader_settings("", 1, "", 0, 0.0, 60)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("north = []", r"\[regions\] north: it has no site; name its sites, or leave it out"),
        ('north = ["g"]', r"\[regions\] north: unknown site 'g'; sites are a, b, c, d, e, f"),
        ('north = ["f", "a"]', r"\[regions\] north: site 'a' is in 'east', too; keep it in one of them"),
        ("north = 3", "north"),
    ],
)
def test_regions_that_cannot_be_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "links.toml"
    path.write_text(MATRIX + text)
    with pytest.raises(InvalidArgumentError, match=reason):
        Links.from_file(path)
    with pytest.raises(InvalidArgumentError, match="regions: expected 3 names, one for each site"):
        Links.uniform("abc", regions=("x", "x"))


def test_plan_says_what_crosses_between_regions_and_what_it_costs(tmp_path: Path) -> None:
    path = tmp_path / "links.toml"
    path.write_text(MATRIX)
    plan = ("plan", "--parameters", "7b", "--links", str(path), "--mode", "local", "--codec", "int4", "--price", "0.08")
    result = CliRunner(env={"COLUMNS": "200"}).invoke(APP, plan)
    assert result.exit_code == 0, result.output
    for reduce in ("all", "aggregator"):
        (line,) = (one for one in result.stdout.splitlines() if one.startswith(f"int4, {reduce}: "))
        assert "a day cross between regions, for $" in line
        assert line.endswith("without [regions] it would be 1.8 times as much")  # 22 pairs cross, 12 by heads
