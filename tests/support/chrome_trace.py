"""Reads what `geocomm trace` wrote, as strictly as Perfetto does: a manifest that breaks a rule fails the import there,
and slices that overlap are dropped. The rules are those of docs/reference/perfetto-manifest.md, of the JSON importer
and of the slice tracker of Perfetto 58."""

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
    texts: dict[str, str] = {}
    with tarfile.open(path) as tar:
        for member in tar.getmembers():
            content = tar.extractfile(member)
            assert content is not None
            assert member.type == tarfile.REGTYPE  # no extended headers
            assert len(member.name) <= 100
            assert member.name not in texts
            texts[member.name] = content.read().decode("ascii")
    manifest_text = texts.pop("perfetto_manifest.json")
    assert manifest_text.startswith('{"perfetto_manifest"')  # by this Perfetto knows it
    document = _json(manifest_text)
    assert set(document) == {"perfetto_manifest"}
    manifest = document["perfetto_manifest"]
    _check_manifest(manifest, list(texts))
    machines = {entry["path"]: entry["machine"]["name"] for entry in manifest["files"]}
    opened = OpenedTrace(manifest, [])
    threads: set[tuple[str, int]] = set()
    for name, text in texts.items():
        slices, own = _slices(_json(text))
        opened.slices += slices
        assert not threads & {(machines[name], number) for number in own}  # of a machine, each number is there once
        threads |= {(machines[name], number) for number in own}
    assert min(one.begin_us for one in opened.slices) == 0
    return opened


def _json(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def _check_manifest(manifest: dict[str, Any], paths: list[str]) -> None:
    assert set(manifest) <= {"version", "trace_time", "files", "attributes"}
    assert manifest["version"] == 1
    assert type(manifest["version"]) is int
    assert [entry["path"] for entry in manifest["files"]] == paths
    for number, entry in enumerate(manifest["files"]):
        assert set(entry) == {"path", "machine"} | ({"clocks"} if number else set())
        assert set(entry["machine"]) == {"name"}
        assert isinstance(entry["machine"]["name"], str)
        assert entry["machine"]["name"]
        if number:  # a file without clocks of its own is pinned to another one's time
            assert entry["clocks"] == {"sync_to": {"file": paths[0]}, "offset_ns": 0}
    for key, value in manifest["attributes"].items():
        assert "." in key.strip(".")
        assert type(value) in (str, int)
        assert isinstance(value, str) or abs(value) < 2**63


def _slices(document: dict[str, Any]) -> tuple[list[Slice], set[int]]:
    """With the numbers of its process and threads."""
    assert set(document) == {"displayTimeUnit", "traceEvents"}
    assert document["displayTimeUnit"] == "ms"
    events = document["traceEvents"]
    (process,) = {event["pid"] for event in events}
    names = {kind: {e["tid"]: e["args"]["name"] for e in events if e["name"] == kind} for kind in _NAMES}
    ((_, process_name),) = names["process_name"].items()
    found: list[Slice] = []
    for event in events:
        assert set(event) == ({"ph", "name", "pid", "tid", "args"} | ({"ts", "dur"} if event["ph"] == "X" else set()))
        assert event["name"]
        assert all(type(event[number]) is int and 0 <= event[number] < 2**32 for number in ("pid", "tid"))
        assert all(_is_argument(value) for value in event["args"].values())
        if event["ph"] == "X":
            assert process > 0
            assert all(type(event[number]) in (int, float) and event[number] >= 0 for number in ("ts", "dur"))
            lane = names["thread_name"][event["tid"]]
            end = event["ts"] + event["dur"]
            found.append(Slice(process_name, lane, event["name"], event["ts"], end, event["args"]))
        else:
            assert (event["ph"], event["name"] in (*_NAMES, "thread_sort_index")) == ("M", True)
    _require_nested(events)
    _require_parts(found)
    return found, {process, *names["thread_name"]}


def _is_argument(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_argument(one) for one in value)
    return value is None or isinstance(value, str | float | bool) or (isinstance(value, int) and abs(value) < 2**63)


_NAMES = ("process_name", "thread_name")


def _require_nested(events: list[dict[str, Any]]) -> None:
    """To the nanosecond, which microseconds are rounded to: who begins in a slice ends in it."""
    open_until: dict[int, list[int]] = {}
    for event in sorted((one for one in events if one["ph"] == "X"), key=lambda one: round(one["ts"] * 1000)):
        began = round(event["ts"] * 1000)
        ended = began + round(event["dur"] * 1000)
        stack = open_until.setdefault(event["tid"], [])
        while stack and stack[-1] <= began:
            stack.pop()
        assert not stack or ended <= stack[-1], event
        stack.append(ended)


def _require_parts(slices: list[Slice]) -> None:
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
