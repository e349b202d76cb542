"""Reads what `geocomm trace` wrote, and checks its form: that of Chrome's trace events, and of Perfetto's manifest."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PARTS = {"inside the site", "between sites", "due", "delta coded", "waits for sites", "averaged", "outer step"}


@dataclass
class Slice:
    process: str
    lane: str
    name: str
    begin_us: float
    end_us: float
    args: dict[str, Any]


@dataclass
class OpenedTrace:
    manifest: dict[str, Any]
    slices: list[Slice]

    def find(self, process: str, lane: str, name: str) -> Slice:
        """The only one."""
        (found,) = [
            one
            for one in self.slices
            if (one.process, one.name) == (process, name) and one.lane.split(" (2")[0] == lane
        ]
        return found


def open_trace(path: Path) -> OpenedTrace:
    with tarfile.open(path) as tar:
        texts = {member.name: tar.extractfile(member).read().decode() for member in tar.getmembers()}
    manifest_text = texts.pop("perfetto_manifest.json")
    assert manifest_text.startswith('{"perfetto_manifest"')  # by this Perfetto knows it
    manifest = json.loads(manifest_text)["perfetto_manifest"]
    assert manifest["version"] == 1
    assert [entry["path"] for entry in manifest["files"]] == list(texts)
    for entry in manifest["files"][1:]:
        assert entry["clocks"] == {"sync_to": {"file": manifest["files"][0]["path"]}, "offset_ns": 0}
        assert entry["machine"]["name"]
    assert all(isinstance(value, int) for value in manifest["attributes"].values())
    opened = OpenedTrace(manifest, [one for text in texts.values() for one in _slices(json.loads(text))])
    assert min(one.begin_us for one in opened.slices) == 0
    return opened


def _slices(document: dict[str, Any]) -> list[Slice]:
    assert document["displayTimeUnit"] == "ms"
    events = document["traceEvents"]
    (process,) = {event["pid"] for event in events}
    assert process > 0
    names = {kind: {e["tid"]: e["args"]["name"] for e in events if e["name"] == kind} for kind in _NAMES}
    (process_name,) = names["process_name"].values()
    found: list[Slice] = []
    for event in events:
        assert set(event) == ({"ph", "name", "pid", "tid", "args"} | ({"ts", "dur"} if event["ph"] == "X" else set()))
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            lane = names["thread_name"][event["tid"]]
            end = event["ts"] + event["dur"]
            found.append(Slice(process_name, lane, event["name"], event["ts"], end, event["args"]))
        else:
            assert (event["ph"], event["name"] in (*_NAMES, "thread_sort_index")) == ("M", True)
    _require_nested(found)
    return found


_NAMES = ("process_name", "thread_name")


def _require_nested(slices: list[Slice]) -> None:
    """Of two slices in a lane, one follows the other, or has it as a part."""
    whole: dict[str, Slice] = {}
    for one in slices:
        before = whole.get(one.lane)
        if one.name in PARTS:
            assert before is not None
            assert before.begin_us <= one.begin_us
            assert one.end_us <= before.end_us + 1e-3
        else:
            assert before is None or before.end_us <= one.begin_us + 1e-3, (before, one)
            whole[one.lane] = one
