"""The page for those who hear it or have no pointer: read from the browser's accessibility tree, walked by keys."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from chromium import Page

from geocomm.observe.alerts import alert_log
from support.page_browser import Node, accessible, mouse, name, open_drawn, press, role, served, value
from support.recorded_run import record

pytestmark = pytest.mark.timeout(180)
LANDMARKS = {"banner", "main", "region"}
CONTROLS = {"button", "DisclosureTriangle", "link", "textbox", "combobox"}
CHARTS = 9
SHOWN = "charts[0].plot.series.slice(1).map((one) => one.show)"
FOCUS = """(() => {
  const one = document.activeElement, style = getComputedStyle(one);
  if (one === document.body) return null;
  const seen = one.matches(":focus-visible") && style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return [(one.getAttribute("aria-label") || one.textContent).trim().slice(0, 40), seen];
})()"""


@pytest.fixture(scope="module")
def address(sites: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the page of a run of so many sites, one of whose alerts fires."""
    now = time.time()
    folder = record(tmp_path_factory.mktemp("run") / "telemetry", sites, 1, now - 60, 60)
    told = {"time": now, "status": "firing", "alert": "DiskFull", "severity": "critical", "labels": {}}
    alert_log.append(folder, [{**told, "text": "the disk is full", "fix": "", "docs": "", "began": now}])
    with served(folder) as address:
        yield address


@pytest.fixture
def page(page: Page, address: str) -> Page:
    """With all that it shows of the run, the verdict too."""
    open_drawn(page, address)
    assert page.wait_for('!document.getElementById("verdict").hidden', 60)
    return page


def legend_of(above: list[Node]) -> str | None:
    return next((name(one) for one in above if name(one).startswith("lines of ")), None)


def hidden(page: Page) -> list[tuple[str | None, str]]:
    """Legends and their buttons that a screen reader is told are not pressed."""
    tree = accessible(page)
    return [
        (legend_of(above), name(node)) for node, above in tree if value(node, "pressed") == "false" and legend_of(above)
    ]


def centre(page: Page, element: str) -> tuple[float, float]:
    """Where on the screen the middle of an element is; the page is scrolled there."""
    page.evaluate(f'{element}.scrollIntoView({{ block: "center", behavior: "instant" }})')
    box: dict[str, float] = page.evaluate(f"{element}.getBoundingClientRect().toJSON()")
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.parametrize("sites", [2, 16], scope="module")
def test_every_part_has_its_place_and_every_control_and_picture_a_name(page: Page, sites: int) -> None:
    tree = accessible(page)
    roles = [role(node) for node, _ in tree]
    assert (roles.count("banner"), roles.count("main")) == (1, 1)
    regions = [name(node) for node, _ in tree if role(node) == "region"]
    assert {"Alerts", "Curves", "Last steps", "Sites and links", "What slows the run most"} <= set(regions)
    assert len(regions) == len(set(regions))
    assert "" not in regions
    for node, above in tree:
        assert role(node) != "StaticText" or LANDMARKS & set(map(role, above)), f"in no landmark: {name(node)}"

    levels = [value(node, "level") for node, _ in tree if role(node) == "heading"]
    assert levels[0] == 1
    assert all(later <= before + 1 for before, later in itertools.pairwise(levels)), levels
    assert "" not in [name(node) for node, _ in tree if role(node) == "heading"]

    controls = [node for node, _ in tree if role(node) in CONTROLS or value(node, "focusable")]
    assert [name(node) for node in controls if not name(node)] == []
    buttons = [name(node) for node, above in tree if role(node) == "button" and not legend_of(above)]
    assert buttons == [
        "10 min",
        "1 hour",
        "1 day",
        "all",
        "zoom in",
        "zoom out",
        "← earlier",
        "later →",
        "show all",
    ]
    pressed = [name(node) for node, above in tree if value(node, "pressed") == "true" and not legend_of(above)]
    assert pressed == ["10 min"]
    lines = {(legend_of(above), name(node)) for node, above in tree if value(node, "pressed") and legend_of(above)}
    assert len({legend for legend, _ in lines}) == (CHARTS if sites == 2 else 0)  # many lines have no legend
    if sites == 2:
        assert {("lines of loss", "virginia"), ("lines of sent", "virginia → frankfurt")} <= lines

    pictures = [node for node, _ in tree if role(node) == "image"]
    assert len(pictures) == CHARTS + (2 if sites == 2 else 1)  # many sites are a table
    last_values = [name(node) for node in pictures if "last values:" in name(node)]
    assert len(last_values) == CHARTS
    assert all(re.search(r"frankfurt[^:]*: [\d.]", text) for text in last_values), last_values
    assert any("held out: 6.3" in text for text in last_values)
    tables = [[role(one) for one in above] for node, above in tree if role(node) == "columnheader"]
    assert all("table" in above for above in tables)
    assert page.problems == []


@pytest.mark.parametrize("sites", [2], scope="module")
def test_keys_come_to_every_control_and_one_sees_where_they_are(page: Page) -> None:
    stops: list[str] = []
    for _ in range(60):
        press(page, "Tab")
        stop = page.evaluate(FOCUS)
        if stop is None:
            break
        assert stop[1], f"not seen: {stop[0]}"
        stops.append(stop[0])
    controls = [name(node) for node, _ in accessible(page) if role(node) == "button"]
    assert Counter(controls) <= Counter(stops)
    assert stops[0].startswith("Input:")  # the verdict opens by keys, too
    assert len(stops) > len(controls) + 4  # tables that scroll

    page.evaluate('[...document.querySelectorAll("#windows button")][1].focus()')
    press(page, "Enter")
    assert page.evaluate("[document.activeElement.textContent, document.activeElement.ariaPressed]") == [
        "1 hour",
        "true",
    ]


@pytest.mark.parametrize("sites", [2], scope="module")
def test_keys_hide_a_line_which_stays_hidden_when_curves_are_read_anew(page: Page) -> None:
    page.evaluate("""[...document.querySelectorAll("[aria-label='lines of loss'] button")][1].focus()""")
    press(page, "Enter")
    assert hidden(page) == [("lines of loss", "virginia")]
    assert page.evaluate(SHOWN) == [True, False, True]
    plots = "charts.map(({ plot }) => plot)"
    page.evaluate(f"window.before = {{ times: charts[0].times, plots: {plots} }}")
    assert page.wait_for("charts[0].times !== before.times", 40)
    assert page.evaluate(f"{plots}.every((plot, place) => plot === before.plots[place])")
    assert page.evaluate("document.activeElement.textContent") == "virginia"  # the keyboard is where it was

    page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert page.wait_for("charts[0].plot !== before.plots[0]", 40)  # in other colours
    assert hidden(page) == [("lines of loss", "virginia")]
    assert page.evaluate(SHOWN) == [True, False, True]
    mouse(page, "mousePressed", centre(page, "charts[0].whole.querySelectorAll('button')[1]"))
    mouse(page, "mouseReleased", centre(page, "charts[0].whole.querySelectorAll('button')[1]"))
    assert hidden(page) == []
    assert page.evaluate(SHOWN) == [True, True, True]


@pytest.mark.parametrize("sites", [2], scope="module")
def test_legend_has_the_values_at_the_pointer_else_the_last_ones(page: Page) -> None:
    said = "charts.map(({ at, values }) => [at.textContent, ...values.map((one) => one.textContent)])"
    last = page.evaluate(said)
    assert {row[0] for row in last} == {"last"}
    assert last[0][1:] == page.evaluate("charts[0].drawn.map(({ series }) => charts[0].show(series.at(-1)))")
    mouse(page, "mouseMoved", centre(page, "charts[0].plot.over"), down=False)
    told = page.evaluate(said)
    assert len({row[0] for row in told}) == 1  # the same time on all charts
    assert re.fullmatch(r"\d\d:\d\d:\d\d", told[0][0])
    assert float(told[0][1]) > float(last[0][1])  # the loss falls
    mouse(page, "mouseMoved", (5.0, 5.0), down=False)
    assert page.evaluate(said) == last


@pytest.mark.parametrize("sites", [2], scope="module")
def test_table_out_of_view_is_told_later_and_when_it_comes_into_view(page: Page) -> None:
    ranks = "document.getElementById('ranks')"
    said, waits = f"{ranks}.textContent", f"late.has({ranks}.closest('section'))"
    page.resize(1440, 500)
    assert page.wait_for(waits, 40)
    before = page.evaluate(said)
    assert page.wait_for(f"{said} !== {json.dumps(before)}", 40)  # its ranks were heard longer ago
    assert page.wait_for(waits, 40)
    before = page.evaluate(said)
    centre(page, ranks)
    assert page.wait_for(f"!{waits} && {said} !== {json.dumps(before)}", 40)
