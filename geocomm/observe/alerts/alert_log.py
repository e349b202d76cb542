"""alerts.jsonl beside the run store: a line when an alert begins and one when it ends."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from geocomm.core.run_dir import RunDir

_MOST_BYTES = 1 << 20
"""The bytes at the end of the file that are read."""


def append(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Add lines. OSError."""
    with RunDir(folder).alerts.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def firing(folder: Path, at: float) -> list[dict[str, Any]]:
    """The lines of alerts that had begun at `at` (Unix seconds) and not ended; critical ones first. Of an alert with
    several severities, the worst."""
    last: dict[str, dict[str, Any]] = {}
    for line in _lines(RunDir(folder).alerts):
        if line["time"] <= at:
            last[json.dumps([line["alert"], line["severity"], line["labels"]])] = line
    found = [line for line in last.values() if line["status"] == "firing"]
    worst = {json.dumps([one["alert"], one["labels"]]) for one in found if one["severity"] == "critical"}
    return sorted(
        (
            one
            for one in found
            if one["severity"] == "critical" or json.dumps([one["alert"], one["labels"]]) not in worst
        ),
        key=lambda one: (one["severity"], -one["time"]),
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_BYTES))
            rows = file.read().split(b"\n")
    except OSError:
        return []
    found: list[dict[str, Any]] = []
    for row in rows:
        with contextlib.suppress(ValueError):  # cut at the begin, or half written
            found.append(json.loads(row))
    return found
