"""The page for those who hear it or have no pointer: read from the browser's accessibility tree, walked by keys."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

import itertools

from chromium import chromium_path

from geocomm.telemetry import alert_log
from support.page_browser import accessible, name, press, role, served_page, value
from support.recorded_run import record

pytestmark = [pytest.mark.timeout(180), pytest.mark.skipif(chromium_path() is None, reason="needs chromium")]
LANDMARKS = {"banner", "main", "region"}
CONTROLS = {"button", "DisclosureTriangle", "link", "textbox", "combobox"}
CHARTS = 9
FOCUS = """(() => {
  const one = document.activeElement, style = getComputedStyle(one);
  if (one === document.body) return null;
  const seen = one.matches(":focus-visible") && style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return [(one.getAttribute("aria-label") || one.textContent).trim().slice(0, 40), seen];
})()"""


def run(folder: Path, sites: int) -> Path:
    now = time.time()
    record(folder, sites, 1, now - 60, 60)
    told = {"time": now, "status": "firing", "alert": "DiskFull", "severity": "critical", "labels": {}}
    alert_log.append(folder, [{**told, "text": "the disk is full", "fix": "", "docs": "", "began": now}])
    return folder


@pytest.mark.parametrize("sites", [2, 16])
def test_every_part_has_its_place_and_every_control_and_picture_a_name(tmp_path: Path, sites: int) -> None:
    with served_page(run(tmp_path / "telemetry", sites)) as page:
        assert page.wait_for('!document.getElementById("verdict").hidden', 60)
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
        buttons = [name(node) for node in controls if role(node) == "button"]
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
        pressed = [name(node) for node in controls if value(node, "pressed") == "true"]
        assert pressed == ["10 min"]

        pictures = [node for node, _ in tree if role(node) == "image"]
        assert len(pictures) == CHARTS + (2 if sites == 2 else 1)  # many sites are a table
        last_values = [name(node) for node in pictures if "last values:" in name(node)]
        assert len(last_values) == CHARTS
        assert all(re.search(r"frankfurt[^:]*: [\d.]", text) for text in last_values), last_values
        assert any("held out: 6.3" in text for text in last_values)
        tables = [[role(one) for one in above] for node, above in tree if role(node) == "columnheader"]
        assert all("table" in above for above in tables)
        assert page.problems == []


def test_keys_come_to_every_control_and_one_sees_where_they_are(tmp_path: Path) -> None:
    with served_page(run(tmp_path / "telemetry", 2)) as page:
        assert page.wait_for('!document.getElementById("verdict").hidden', 60)
        stops: list[str] = []
        for _ in range(40):
            press(page, "Tab")
            stop = page.evaluate(FOCUS)
            if stop is None:
                break
            assert stop[1], f"not seen: {stop[0]}"
            stops.append(stop[0])
        controls = {name(node) for node, _ in accessible(page) if role(node) == "button"}
        assert controls <= set(stops)
        assert stops[0].startswith("Input:")  # the verdict opens by keys, too
        assert len(stops) > len(controls) + 4  # tables that scroll

        page.evaluate('[...document.querySelectorAll("#windows button")][1].focus()')
        press(page, "Enter")
        assert page.evaluate("[document.activeElement.textContent, document.activeElement.ariaPressed]") == [
            "1 hour",
            "true",
        ]
