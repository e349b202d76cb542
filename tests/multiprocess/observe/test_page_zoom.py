"""A part of the time is chosen on the page: all curves and the steps follow, by pointer and by keys."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from chromium import Page

from support.page_browser import mouse, open_drawn, press, served
from support.recorded_run import record
from support.warm_executable import warm_executable

pytestmark = pytest.mark.timeout(180)
PART = "charts.map(({ plot }) => [plot.scales.x.min, plot.scales.x.max])"
STEPS = (
    """[...document.querySelectorAll("#steps g title")].map((one) => Number(/step (\\d+)/.exec(one.textContent)[1]))"""
)
SPACING = "charts[0].times[2] - charts[0].times[1]"
SAID = 'document.getElementById("part").textContent'


def part(page: Page) -> tuple[float, float]:
    """What all charts show, in Unix seconds; it is the same."""
    parts: list[list[float]] = page.evaluate(PART)
    assert len(parts) == 9
    assert all(one == parts[0] for one in parts)
    return parts[0][0], parts[0][1]


def place(page: Page, chart: int, share: float) -> tuple[float, float]:
    """Where on the screen a share of the width of a chart is; the chart is scrolled there."""
    page.evaluate(f'charts[{chart}].plot.over.scrollIntoView({{ block: "center", behavior: "instant" }})')
    box: dict[str, Any] = page.evaluate(f"charts[{chart}].plot.over.getBoundingClientRect().toJSON()")
    return box["x"] + share * box["width"], box["y"] + box["height"] / 2


def drag(page: Page, chart: int, shares: tuple[float, float]) -> None:
    begin, end = (place(page, chart, share) for share in shares)
    mouse(page, "mouseMoved", begin, down=False)
    mouse(page, "mousePressed", begin)
    mouse(page, "mouseMoved", ((begin[0] + end[0]) / 2, begin[1]))
    mouse(page, "mouseMoved", end)
    mouse(page, "mouseReleased", end)


def focus(page: Page, button: str) -> None:
    page.evaluate(f'[...document.querySelectorAll("button")].find((one) => one.textContent === "{button}").focus()')


def test_part_selected_on_one_curve_is_shown_by_all_and_by_the_steps_with_more_detail(
    page: Page, tmp_path: Path
) -> None:
    begin = time.time() - 1800
    folder = record(tmp_path / "telemetry", 2, 1, begin, range(0, 1800, 2))
    with served(folder) as address:
        open_drawn(page, address)
        focus(page, "all")
        press(page, "Enter")
        assert page.wait_for(f"{SPACING} === 10", 40)
        whole = part(page)
        assert max(page.evaluate(STEPS)) == 899

        drag(page, 4, (0.4, 0.6))
        assert page.wait_for(f"{SPACING} === 2", 40)
        first, last = part(page)
        length = whole[1] - whole[0]
        assert (first, last) == (
            pytest.approx(whole[0] + 0.4 * length, abs=0.02 * length),
            pytest.approx(whole[0] + 0.6 * length, abs=0.02 * length),
        )
        assert page.evaluate(SAID).startswith("from ")
        steps = page.evaluate(STEPS)
        assert len(steps) == 2 * 60
        assert max(steps) == pytest.approx((last - begin) / 2, abs=2)  # of 900 steps, those that ended then
        time.sleep(3)  # the run is told anew meanwhile
        assert (part(page), page.evaluate(STEPS)) == ((first, last), steps)

        at = place(page, 0, 0.5)
        for clicks in (1, 2):
            mouse(page, "mousePressed", at, clicks=clicks)
            mouse(page, "mouseReleased", at, clicks=clicks)
        assert page.wait_for(f"{SPACING} === 10", 40)
        assert part(page)[0] == whole[0]
        assert page.evaluate(SAID) == ""
        assert page.problems == []


def test_part_is_chosen_by_keys_and_in_a_file_of_the_page(page: Page, tmp_path: Path) -> None:
    folder = record(tmp_path / "telemetry", 2, 1, time.time() - 100, 100)
    report = tmp_path / "report.html"
    subprocess.run([warm_executable(), "-m", "geocomm", "dashboard", folder, "--export", report], check=True)
    page.open(report.as_uri())
    assert page.wait_for("charts.length === 9", 60)
    whole, steps = part(page), page.evaluate(STEPS)
    named = page.evaluate('charts[0].box.getAttribute("aria-label")')
    length = whole[1] - whole[0]
    for button, expected in (
        ("zoom in", (0.25, 0.75)),
        ("zoom in", (0.375, 0.625)),
        ("← earlier", (0.25, 0.5)),
        ("later →", (0.375, 0.625)),
        ("zoom out", (0.25, 0.75)),
    ):
        focus(page, button)
        press(page, "Enter")
        assert page.evaluate("document.activeElement.textContent") == button
        assert part(page) == pytest.approx([whole[0] + share * length for share in expected], abs=0.01)
    assert 20 <= len(page.evaluate(STEPS)) <= 0.55 * len(steps)
    assert page.evaluate('charts[0].box.getAttribute("aria-label")') != named
    press(page, "Escape")
    assert (part(page), page.evaluate(STEPS)) == (whole, steps)
    for _ in range(3):  # not before the first report, nor less than a few seconds
        for button in ("zoom in", "zoom in", "← earlier", "← earlier", "← earlier"):
            focus(page, button)
            press(page, "Enter")
    assert part(page) == (whole[0], pytest.approx(whole[0] + 4, abs=2.5))
    assert page.problems == []


def test_file_says_how_many_points_it_has_and_zooms_no_closer_than_to_a_few(page: Page, tmp_path: Path) -> None:
    folder = record(tmp_path / "telemetry", 2, 1, time.time() - 4000, range(0, 4000, 20))
    report = tmp_path / "report.html"
    subprocess.run([warm_executable(), "-m", "geocomm", "dashboard", folder, "--export", report], check=True)
    page.open(report.as_uri())
    assert page.wait_for("charts.length === 9", 60)
    assert "This file has one point in 20 s; zooming in shows no more." in page.evaluate("document.body.innerText")
    for _ in range(12):
        focus(page, "zoom in")
        press(page, "Enter")
    first, last = part(page)
    assert last - first == pytest.approx(80, abs=0.1)
    points = f"({{ times }}) => times.filter((at) => at >= {first} && at <= {last}).length"
    assert min(page.evaluate(f"charts.map({points})")) >= 4
    assert page.problems == []
