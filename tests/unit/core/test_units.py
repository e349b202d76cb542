"""Rates, durations, probabilities and sizes as people write them."""

from __future__ import annotations

import pytest

from geocomm.core.units import (
    UnitError,
    count_text,
    duration_text,
    parse_duration,
    parse_probability,
    parse_rate,
    parse_size,
    parse_wait,
)


@pytest.mark.parametrize(
    ("text", "bps"),
    [("1gbit", 1e9), ("200Mbit", 200e6), ("64 kbit", 64e3), ("1.5gbit/s", 1.5e9), ("5000", 5e3), (1e6, 1e6)],
)
def test_parse_rate_known_units(text: str | float, bps: float) -> None:
    assert parse_rate(text) == pytest.approx(bps)


@pytest.mark.parametrize(("text", "seconds"), [("100ms", 0.1), ("0.3s", 0.3), ("500us", 5e-4), ("0", 0.0), (0, 0.0)])
def test_parse_duration_known_units(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3", 3.0), (3, 3.0), (".5", 0.5), ("200ms", 0.2), ("90s", 90.0), ("2min", 120), ("1h", 3600)],
)
def test_parse_wait_takes_bare_seconds_and_units(text: str | float, seconds: float) -> None:
    assert parse_wait(text) == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "loss"), [("0.1%", 0.001), ("0.001", 0.001), (0.5, 0.5), ("100%", 1.0), (0, 0.0)])
def test_parse_probability_percent_and_fraction(text: str | float, loss: float) -> None:
    assert parse_probability(text) == pytest.approx(loss)


@pytest.mark.parametrize(("text", "size"), [("4mb", 4_000_000), ("256KiB", 262_144), ("1500", 1500), (2000, 2000)])
def test_parse_size_known_units(text: str | float, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_rate, "1gb"),
        (parse_rate, "fast"),
        (parse_rate, "-1gbit"),
        (parse_rate, ""),
        (parse_rate, "nan"),
        (parse_rate, True),
        (parse_duration, "100"),
        (parse_duration, "1 hour"),
        (parse_wait, "soon"),
        (parse_wait, "-1"),
        (parse_probability, "101%"),
        (parse_probability, "-0.1%"),
        (parse_probability, 1.5),
        (parse_size, "4mbit"),
    ],
)
def test_parse_bad_text_names_the_field(parse: type, text: object) -> None:
    with pytest.raises(UnitError, match=r"^the field: "):
        parse(text, "the field")


@pytest.mark.parametrize(
    ("seconds", "form", "text"),
    [
        *((0.25, ".3g", "0.25 s"), (119.4, ".0f", "119 s"), (120, ".0f", "2 min")),
        *((9000, ".3g", "2.5 h"), (172800, ".0f", "2 d")),
    ],
)
def test_a_duration_is_told_in_the_largest_unit_of_which_it_has_two(seconds: float, form: str, text: str) -> None:
    assert duration_text(seconds, form) == text


def test_a_number_of_things_is_told_in_the_singular_where_it_is_one() -> None:
    assert [count_text(number, "rank") for number in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
