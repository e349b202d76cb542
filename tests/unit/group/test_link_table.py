"""Tables of links: files, what is refused, the rows of a group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.errors import InvalidArgumentError
from geocomm.core.link_table import ASSUMED_RATE_BPS, LEAST_BPS, MOST_BPS, Links, table_of
from geocomm.group.planning.link_report import region_lines

SITES = ("a", "b", "c")


def links() -> Links:
    return Links(
        SITES,
        table_of(3, lambda src, dst: 1e8 * (1 + src + 3 * dst)),
        table_of(3, lambda src, dst: 0.01 * (1 + src + dst)),
        up_bps=(1e9, 2e9, 3e9),
        source="measured",
    )


def written(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "links.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def test_links_written_and_read_are_the_same_but_for_their_source(tmp_path: Path) -> None:
    read = Links.from_file(written(tmp_path, links().to_dict()))
    assert read.source == "file"
    assert read.rate_bps == links().rate_bps
    assert read.rtt_s == links().rtt_s
    assert read.up_bps == links().up_bps
    assert read.down_bps is None
    assert read.digest() == links().digest()


def test_digest_of_other_numbers_differs() -> None:
    assert Links.uniform(SITES).digest() != Links.uniform(SITES, rtt_s=0.11).digest()
    assert Links.uniform(SITES).digest() != Links.uniform(("a", "c", "b")).digest()


def test_table_of_equal_links_has_zeros_from_a_site_to_itself() -> None:
    table = Links.uniform(["a", "b"], 1e9, 0.1)
    assert table.rate_bps == ((0.0, 1e9), (1e9, 0.0))
    assert table.rtt_s == ((0.0, 0.1), (0.1, 0.0))


def test_matrix_of_the_emulator_is_a_table_of_links(tmp_path: Path) -> None:
    path = tmp_path / "wan.toml"
    path.write_text(
        """
        sites = ["a", "b"]
        [default]
        rate = "200mbit"
        rtt = "80ms"
        [[link]]
        from = "a"
        to = "b"
        rate = "50mbit"
        delay = "10ms"
        """
    )
    read = Links.from_file(path)
    assert read.sites == ("a", "b")
    assert read.rate_bps == ((0.0, 50e6), (200e6, 0.0))
    assert read.rtt_s[0][1] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[regions]\nx = ["a", "b"]\n[prices]\na = -1',
            "prices.a: Input should be greater than or equal to 0 (got -1)",
        ),
        ("[prices]\nc = 1", "[prices]: unknown site 'c'; sites are a, b"),
        ('[regions]\n"" = ["a", "b"]', "[regions]: a region has an empty name (its sites: a, b)"),
        ("[regions]\nx = []", "[regions] x: it has no site; name its sites, or leave it out"),
        ('[regions]\nx = ["a", "a"]', "[regions] x: site 'a' is there twice"),
        ('[regions]\nx = ["a"]\ny = ["a"]', "[regions] y: site 'a' is in 'x', too; keep it in one of them"),
        ('[default]\nrtt = "300s"', "rtt_s from a to b is 300; expected 0 to 120"),
    ],
)
def test_what_a_matrix_says_wrong_is_one_sentence_that_names_the_file_once(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "wan.toml"
    path.write_text(f'sites = ["a", "b"]\n{text}\n')
    with pytest.raises(InvalidArgumentError) as error:
        Links.from_file(path)
    assert str(error.value) == f"links: {path}: {said}"


@pytest.mark.parametrize(
    ("regions", "why"),
    [
        (None, []),
        (("x", "x", "x"), ["regions: they change nothing, since all sites are in one"]),
        (("x", "y", ""), ["regions: they change nothing, since no two sites share one"]),
    ],
)
def test_regions_that_change_nothing_are_said_to(regions: tuple[str, ...] | None, why: list[str]) -> None:
    assert region_lines(Links.uniform(SITES, regions=regions)) == why


def test_select_takes_the_rows_of_the_group_in_its_order() -> None:
    chosen = links().select(["c", "a"])
    assert chosen.rate_bps[0][1] == links().rate_bps[2][0]
    assert chosen.rtt_s[1][0] == links().rtt_s[0][2]
    assert chosen.up_bps == (3e9, 1e9)


def test_select_of_an_unknown_site_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="virginia"):
        links().select(["a", "virginia"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"geocomm_links": 2}, "geocomm_links"),
        ({"sites": ["a", "b"]}, "rate_bps"),
        ({"sites": ["a", "b", "b"]}, "sites"),
        ({"rate_bps": [[0, 1e8, 1e8], [1e8, 0, 0], [1e8, 1e8, 0]]}, "b to c"),
        ({"rate_bps": [[0, 1e8, 1e8], [1e8, 0, float("nan")], [1e8, 1e8, 0]]}, "b to c"),
        ({"rtt_s": [[0, 1, 1], [1, 0, -1], [1, 1, 0]]}, "b to c"),
        ({"rtt_s": [[0, 1], [1, 0]]}, "rtt_s"),
        ({"rtt_s": "fast"}, "numbers"),
        ({"rtt_s": None}, "numbers"),
        ({"loss": [[0, 1.5, 0], [0, 0, 0], [0, 0, 0]]}, "a to b"),
        ({"up_bps": [1e9, 1e9]}, "up_bps"),
        ({"up_bps": [1e9, 1e9, 2e15]}, "up_bps"),
        ({"down_bps": [1e9, 0, 1e9]}, "down_bps"),
    ],
)
def test_impossible_tables_are_refused_naming_file_and_field(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    path = written(tmp_path, links().to_dict() | change)
    with pytest.raises(InvalidArgumentError) as error:
        Links.from_file(path)
    assert str(path) in str(error.value)
    assert named in str(error.value)


def test_limits_themselves_are_possible() -> None:
    rates = (LEAST_BPS, MOST_BPS)
    table = Links.uniform(["a", "b"], MOST_BPS, 120.0, loss=table_of(2, lambda *_: 1.0), up_bps=rates, down_bps=rates)
    assert (table.up_bps, table.down_bps) == (rates, rates)


def test_table_without_a_field_is_refused_naming_it(tmp_path: Path) -> None:
    document = links().to_dict()
    del document["rtt_s"]
    with pytest.raises(InvalidArgumentError, match=r"links\.json: rtt_s is missing"):
        Links.from_file(written(tmp_path, document))


def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    assert Links.from_file(written(tmp_path, links().to_dict() | {"colour": "red"})).digest() == links().digest()


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "\udcff"])
def test_what_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "links.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidArgumentError):
        Links.from_file(path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="nowhere"):
        Links.from_file(tmp_path / "nowhere.json")


def test_native_form_is_bytes_and_one_way_seconds() -> None:
    rates, delays, up, down, regions, prices = Links.uniform(SITES).for_native()
    assert rates[1] == ASSUMED_RATE_BPS / 8
    assert delays[1] == pytest.approx(0.05)
    assert (up, down, regions, prices) == ([], [], [], [])
    named = Links.uniform("abcd", regions=("x", "", "x", "y"), dollars_per_gb=(0.02, 0.0, 0.0, 0.0)).for_native()
    assert named[4] == [0, 1, 0, 2]
    assert named[5] == pytest.approx([2e-11, 0.0, 0.0, 0.0])
