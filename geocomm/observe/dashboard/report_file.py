"""The page as one file, which opens without a server: everything is in it."""

from __future__ import annotations

import html
import json
from pathlib import Path

from geocomm.observe.dashboard.app import STATIC
from geocomm.observe.dashboard.curves import Curves
from geocomm.observe.dashboard.page_state import LastSteps, page_state, verdicts
from geocomm.observe.diagnosis.live_diagnosis import LiveDiagnosis
from geocomm.observe.telemetry.run_store import RunStore

_STYLES = ("uplot-1.6.32/uPlot.min.css", "app.css")
_SCRIPTS = ("uplot-1.6.32/uPlot.iife.min.js", "format.js", "curves.js", "app.js")


def write_report(store: RunStore, path: Path) -> None:
    """Write the run as it stood at its last report, with the curves of all of it. OSError."""
    span = store.span()
    first, last = span or (0.0, 0.0)
    found = verdicts(LiveDiagnosis().look(store))
    data = {
        "run": page_state(store, LastSteps(store), last + 1) | {"verdicts": found},
        "curves": Curves(store).read(first - 1, last),
    }
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    for name in _STYLES:
        page = page.replace(f'<link rel="stylesheet" href="static/{name}">', f"<style>{_text(name)}</style>")
    for name in _SCRIPTS:
        page = page.replace(f'<script src="static/{name}" defer></script>', "")
    # Not a script: nothing in it is run, whatever sites and hosts are called.
    content = html.escape(json.dumps(data, separators=(",", ":")), quote=False)
    scripts = "".join(f"<script>{_text(name)}</script>" for name in _SCRIPTS)
    path.write_text(page.replace("</body>", f'<template id="data">{content}</template>{scripts}</body>'), "utf-8")


def _text(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")
