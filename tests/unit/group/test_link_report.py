"""What people read of a table of links: rates, delays, limits, relays, and the picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from geocomm.core.link_table import MOST_BPS, Links, table_of
from geocomm.core.units import rate_text
from geocomm.group.planning.link_report import (
    access_lines,
    delays_table,
    draw,
    heat,
    rates_table,
    relay_lines,
)

SITES = ("paris", "tokyo", "virginia")


def links() -> Links:
    """From number s to number d: (1 + s + 3 d) * 100 Mbit/s, a round trip of (s + 3 d) * 10 ms, (s + d) % lost."""
    return Links(
        SITES,
        table_of(3, lambda src, dst: 1e8 * (1 + src + 3 * dst)),
        table_of(3, lambda src, dst: 0.01 * (src + 3 * dst)),
        loss=table_of(3, lambda src, dst: 0.01 * (src + dst)),
        up_bps=(MOST_BPS, 2e9, MOST_BPS),
        down_bps=(3e8, MOST_BPS, MOST_BPS),
    )


def rows(table: Table) -> list[list[str]]:
    """The cells, with the header."""
    console = Console(width=200)
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    assert "paris" in "".join(segment.text for segment in console.render(table))
    return [[str(column.header) for column in table.columns], *map(list, zip(*cells, strict=True))]


def test_rates_are_shown_with_their_unit_and_colored_by_their_logarithm() -> None:
    assert rate_text(1.234e9) == "1.23 Gbit/s"
    assert rate_text(1e6) == "1 Mbit/s"
    assert rate_text(64_000) == "64 kbit/s"
    assert heat(1e6, 1e6, 1e8) == 0
    assert heat(1e7, 1e6, 1e8) == pytest.approx(0.5)
    assert heat(1e6, 1e6, 1e6) == 1


def test_tables_have_a_row_and_a_column_for_each_site() -> None:
    assert rows(rates_table(links())) == [
        ["", *SITES],
        ["paris", "-", "400 Mbit/s", "700 Mbit/s"],
        ["tokyo", "200 Mbit/s", "-", "800 Mbit/s"],
        ["virginia", "300 Mbit/s", "600 Mbit/s", "-"],
    ]
    assert rows(delays_table(links())) == [
        ["", *SITES],
        ["paris", "-", "30 ms (1 %)", "60 ms (2 %)"],
        ["tokyo", "10 ms (1 %)", "-", "70 ms (3 %)"],
        ["virginia", "20 ms (2 %)", "50 ms (3 %)", "-"],
    ]
    assert rows(delays_table(Links.uniform(["paris", "tokyo"], rtt_s=0.1)))[1] == ["paris", "-", "100 ms"]


def test_limits_are_those_of_sites_that_have_one() -> None:
    assert access_lines(links()) == [
        "tokyo sends at most 2 Gbit/s over all its links together",
        "paris receives at most 300 Mbit/s over all its links together",
    ]
    assert access_lines(Links.uniform(SITES)) == []


@pytest.mark.parametrize(
    ("slow", "lines"),
    [
        ({("paris", "virginia"), ("virginia", "paris")}, ["paris and virginia: over tokyo, where that is faster"]),
        ({("virginia", "paris")}, ["virginia to paris: over tokyo, where that is faster"]),
        (set(), []),
    ],
)
def test_relays_of_both_directions_share_a_line(slow: set[tuple[str, str]], lines: list[str]) -> None:
    rates = table_of(3, lambda src, dst: 1e6 if (SITES[src], SITES[dst]) in slow else 1e9)
    assert relay_lines(Links(SITES, rates, table_of(3, lambda *_: 0.05))) == lines


def test_picture_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(links(), tmp_path / "links.png")
    assert (tmp_path / "links.png").read_bytes().startswith(b"\x89PNG")
