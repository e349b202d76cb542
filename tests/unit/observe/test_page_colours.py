"""The colours of the page can be told from what is behind them, as WCAG 2 asks: texts 4.5 to 1, shapes 3 to 1."""

from __future__ import annotations

import re

import pytest

from geocomm.observe.dashboard.app import STATIC

TEXTS = ("ink", "faint", "good", "warn", "bad", "compute")
SHAPES = ("input", "exposed", "checkpoint", "link")
Colour = tuple[float, float, float]


def themes() -> dict[str, dict[str, str]]:
    style = (STATIC / "app.css").read_text()
    light, dark = (
        dict(re.findall(r"--([a-z]+): ([^;]+);", block)) for block in re.findall(r":root \{(.*?)\}", style, re.S)
    )
    return {"light": light, "dark": light | dark}


def colour(text: str) -> Colour:
    digits = text.removeprefix("#")
    digits = "".join(2 * one for one in digits) if len(digits) == 3 else digits
    red, green, blue = (int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4))
    return red, green, blue


def luminance(one: Colour) -> float:
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in one)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Colour, other: Colour) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_and_shapes_stand_out(theme: str) -> None:
    colours = themes()[theme]
    behind = [colour(colours["paper"]), colour(colours["card"])]
    for name in TEXTS:
        assert min(contrast(colour(colours[name]), one) for one in behind) >= 4.5, name
    for text in [colours[name] for name in SHAPES] + colours["curves"].split():
        assert min(contrast(colour(text), one) for one in behind) >= 3, text


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_numbers_in_the_hottest_cell_can_be_read(theme: str) -> None:
    colours = themes()[theme]
    found = re.search(r"const MOST_HEAT = ([0-9]+);", (STATIC / "app.js").read_text())
    assert found is not None
    part = int(found[1]) / 100
    heat, card = colour(colours["compute"]), colour(colours["card"])
    cell = tuple(part * hot + (1 - part) * cold for hot, cold in zip(heat, card, strict=True))
    assert contrast(colour(colours["ink"]), (cell[0], cell[1], cell[2])) >= 4.5
