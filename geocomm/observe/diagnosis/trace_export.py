"""A run's last steps as a trace for Perfetto: a Chrome JSON for each rank, on one clock, in a TAR.

Every rank's times are those of its machine's monotonic clock. They are moved to the clock of one rank, the reference
(`rank_clocks`). The manifest names the machines, and says that the files need
no other offset: https://perfetto.dev/docs/reference/perfetto-manifest
"""

from __future__ import annotations

import io
import json
import math
import tarfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geocomm.core.bad_input import BadInput
from geocomm.observe.diagnosis.rank_clocks import Clock, rank_clocks
from geocomm.observe.telemetry.last_reports import SILENT_SECONDS
from geocomm.observe.telemetry.report import Row
from geocomm.observe.telemetry.run_store import Rank, RunStore

MANIFEST = "perfetto_manifest.json"
_CLOCK_REPORTS_S = 60.0
"""Clock offsets are from the reports of this many seconds."""
_MOST_LANES = 10_000
_REPORT_DELAY_S = 10.0
"""So long after an operation ended may its report come."""


class NoTraceError(BadInput):
    """There is nothing to trace; the message says what to do."""


@dataclass(frozen=True)
class RankTrace:
    """What is known of one rank in the time that is traced."""

    rank: Rank
    host: str
    clock: Clock
    now_ns: int
    """The time of its last report, on its clock: what is under way is drawn up to here."""
    steps: list[Row]
    operations: list[Row]
    rounds: list[Row]

    @property
    def file_name(self) -> str:
        """The name of the file with its JSON."""
        return f"{self.rank.site}-rank{self.rank.rank}.json"


@dataclass(frozen=True)
class Trace:
    """The last steps of a run."""

    begin_ns: int
    """On the reference's clock."""
    end_ns: int
    ranks: list[RankTrace]
    """The first is the reference."""
    left_out: list[Rank]
    """They are silent, or have had no step."""

    @property
    def first_ns(self) -> int:
        """When the first of all that is in it began, on the reference's clock."""
        rows = [(one.clock, row) for one in self.ranks for row in (*one.operations, *one.rounds)]
        began = [(clock, _began_ns(row)) for clock, row in rows]
        return min([self.begin_ns, *(clock.to_reference(at) for clock, at in began if at is not None)])

    @property
    def error_ns(self) -> int:
        """The most by which two ranks' times may be wrong to each other."""
        return sum(sorted(one.clock.error_ns for one in self.ranks)[-2:])

    @property
    def clocks_measured(self) -> bool:
        """Links have measured them all; else some are by the machines' times of day."""
        return all(one.clock.measured for one in self.ranks)


def read_trace(store: RunStore, at: float, steps: int) -> Trace:
    """The last steps up to `at`. NoTraceError where no rank has reported any."""
    everyone = store.latest(until=at)
    heard = [received for received in everyone if at - received.at <= SILENT_SECONDS]
    last_steps = {received.rank: _newest_steps(store, received.rank, at, steps) for received in heard}
    last = sorted((received for received in heard if last_steps[received.rank]), key=lambda one: one.report.rank)
    if not last:
        raise NoTraceError("no rank has reported a step: call geocomm.report_step() in the program, once a step")
    here = last[0]

    def came(at_ns: int) -> float:
        """A moment of the rank by the collector's clock."""
        return here.at - (here.report.now_ns - at_ns) / 1e9

    first, end = map(came, _span(last_steps[here.rank]))
    clocks = rank_clocks(store.reports(since=first - _CLOCK_REPORTS_S, until=at), last, (first, end))
    spans = [tuple(map(clocks[rank].to_reference, _span(rows))) for rank, rows in last_steps.items() if rows]
    begin_ns, end_ns = min(span[0] for span in spans), max(span[1] for span in spans)
    since, until = came(begin_ns) - 1, came(end_ns) + _REPORT_DELAY_S

    def under_way(kind: str) -> dict[Rank, list[Row]]:
        """The rows that were under way at some moment between the two."""
        found: dict[Rank, list[Row]] = defaultdict(list)
        for rank, row in store.rows(kind, since, min(until, at)):
            if rank in clocks and _overlaps(row, clocks[rank], begin_ns, end_ns):
                found[rank].append(row)
        return found

    operations, rounds = under_way("operations"), under_way("rounds")
    traces = [
        RankTrace(
            rank=received.rank,
            host=received.report.host,
            clock=clocks[received.rank],
            now_ns=received.report.now_ns,
            steps=last_steps[received.rank],
            operations=operations[received.rank],
            rounds=rounds[received.rank],
        )
        for received in last
    ]
    known = {received.rank for received in last}
    return Trace(begin_ns, end_ns, traces, [received.rank for received in everyone if received.rank not in known])


def _newest_steps(store: RunStore, rank: Rank, at: float, steps: int) -> list[Row]:
    found: list[Row] = []
    for row in store.newest("steps", rank, at):
        if row.get("seconds") is not None:
            found.append(row)
        if len(found) == steps:
            break
    return found[::-1]


def _span(steps: list[Row]) -> tuple[int, int]:
    return steps[0]["ended_ns"] - round(steps[0]["seconds"] * 1e9), steps[-1]["ended_ns"]


def _overlaps(row: Row, clock: Clock, begin_ns: int, end_ns: int) -> bool:
    began, ended = _began_ns(row), _ended_ns(row)
    if began is None or clock.to_reference(began) > end_ns:
        return False
    return ended is None or clock.to_reference(ended) >= begin_ns


def _began_ns(row: Row) -> int | None:
    return row["issued_ns"] if "issued_ns" in row else row["begun_ns"] or row["due_ns"]


def _ended_ns(row: Row) -> int | None:
    return row["ended_ns"] if "ended_ns" in row else row["applied_ns"]


def write_trace(trace: Trace, path: Path) -> None:
    """Write the TAR. Raises OSError."""
    with tarfile.open(path, "w") as tar:
        _add(tar, MANIFEST, manifest(trace))
        for one in trace.ranks:
            _add(tar, one.file_name, chrome_trace(one, trace.first_ns))


def _add(tar: tarfile.TarFile, name: str, document: Row) -> None:
    content = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def manifest(trace: Trace) -> Row:
    """How Perfetto merges the files: whose they are, and that they have one clock."""
    files: list[Row] = []
    for one in trace.ranks:
        entry: Row = {"path": one.file_name, "machine": {"name": f"{one.rank.site} {one.host}".strip()}}
        if files:
            entry["clocks"] = {"sync_to": {"file": files[0]["path"]}, "offset_ns": 0}
        files.append(entry)
    offsets = {f"geocomm.clock_offset_ns.{one.file_name}": one.clock.offset_ns for one in trace.ranks}
    # The first key has to be this one: Perfetto knows a manifest by it.
    return {"perfetto_manifest": {"version": 1, "files": files, "attributes": offsets}}


def chrome_trace(one: RankTrace, begin_ns: int) -> Row:
    """A rank's steps, operations and rounds as Chrome's trace events. begin_ns: what is 0, on the reference's clock:
    Perfetto drops what is before."""
    lanes = _Lanes(one, begin_ns)
    began_after_ns = 0
    for row in one.steps:
        numbers = {name: row[name] for name in row if name not in ("step", "ended_ns")}
        # Seconds are rounded in reports: a step does not begin before the one before has ended.
        began_ns = max(row["ended_ns"] - round(row["seconds"] * 1e9), began_after_ns)
        lanes.slice("steps", f"step {row['step']}", began_ns, row["ended_ns"], numbers)
        began_after_ns = row["ended_ns"]
    for row in one.operations:
        _draw_operation(lanes, row)
    for row in one.rounds:
        _draw_round(lanes, row)
    return {"displayTimeUnit": "ms", "traceEvents": lanes.events()}


def _draw_operation(lanes: _Lanes, row: Row) -> None:
    name = f"{row['kind']} {row['sequence']}"
    numbers = {key: row[key] for key in ("dtype", "elements", "codec", "failed")}
    numbers |= {key: row[key] for key in row if key.endswith(("_sent", "_received"))}
    numbers |= {"group": str(row["group"]), "coding_seconds": row["coding_ns"] / 1e9}
    parts = [
        ("inside the site", row["issued_ns"], row["began_ns"]),
        ("between sites", row["began_ns"], row["exchanged_ns"]),
        ("inside the site", row["exchanged_ns"], row["ended_ns"]),
    ]
    lanes.slice("operations", name, row["issued_ns"], row["ended_ns"], numbers, parts)
    if row["wait_began_ns"] is not None:
        lanes.slice("wait()", name, row["wait_began_ns"], row["wait_ended_ns"])
    if row["began_ns"] is not None and row["encoded_ns"] is not None:
        lanes.slice("messages made", name, row["began_ns"], row["encoded_ns"])
    for peer in row["peers"]:
        if peer["first_in_ns"] is not None:
            known = peer["rank"] is not None
            who = f"rank {peer['rank']} (site {peer['site']})" if known else peer["peer"]
            lanes.slice(f"from {who}", name, peer["first_in_ns"], peer["last_in_ns"])


def _draw_round(lanes: _Lanes, row: Row) -> None:
    name = f"round {row['round']} of fragment {row['fragment']}"
    numbers = {key: row[key] for key in ("step", "weight", "bytes", "attempts", "counted", "last_arrived", "failed")}
    parts = [
        ("due", row["due_ns"], row["begun_ns"]),
        ("delta coded", row["begun_ns"], row["offered_ns"]),
        ("waits for sites", row["offered_ns"], row["listed_ns"]),
        ("averaged", row["listed_ns"], row["averaged_ns"]),
        ("outer step", row["averaged_ns"], row["applied_ns"]),
    ]
    began = min(at for at in (row["due_ns"], row["begun_ns"]) if at is not None)
    lanes.slice("rounds", name, began, row["applied_ns"], numbers, parts)
    for peer in row["peers"]:
        if peer["arrived_ns"] is not None:
            first = peer["announced_ns"] or peer["arrived_ns"]
            lanes.slice(f"from site {peer['site']}", name, first, peer["arrived_ns"], {"bytes": peer["bytes"]})


@dataclass
class _Slice:
    name: str
    begin_ns: int
    end_ns: int
    numbers: Row
    parts: list[_Slice] = field(default_factory=list["_Slice"])


class _Lanes:
    """Slices by lane. Those that overlap get lanes of their own, since Chrome's format nests what one lane has."""

    def __init__(self, one: RankTrace, begin_ns: int) -> None:
        self._one = one
        self._begin_ns = begin_ns
        self._slices: dict[str, list[_Slice]] = {}

    def slice(
        self,
        lane: str,
        name: str,
        begin_ns: int,
        end_ns: int | None,
        numbers: Row | None = None,
        parts: Iterable[tuple[str, int | None, int | None]] = (),
    ) -> None:
        """end_ns: None: it is under way. parts: in order; those that have not begun are left out."""
        until = self._one.now_ns if end_ns is None else end_ns
        known = dict(numbers or {}) | ({"under way": True} if end_ns is None else {})
        inner = [
            _Slice(what, first, until if last is None else last, {}) for what, first, last in parts if first is not None
        ]
        self._slices.setdefault(lane, []).append(_Slice(name, begin_ns, max(begin_ns, until), known, inner))

    def events(self) -> list[Row]:
        """The events as Chrome has them, by lane, each in the order of time."""
        rank = self._one.rank
        found = [self._meta("process_name", 0, f"rank {rank.rank} (site {rank.site})")]
        number = 0
        for lane in sorted(self._slices, key=_lane_order):
            rows: list[list[_Slice]] = []
            for one in sorted(self._slices[lane], key=lambda one: (one.begin_ns, -one.end_ns)):
                free = next((row for row in rows if row[-1].end_ns <= one.begin_ns), None)
                if free is None:
                    rows.append([one])
                else:
                    free.append(one)
            for index, row in enumerate(rows):
                number += 1
                found.append(self._meta("thread_name", number, lane if index == 0 else f"{lane} ({index + 1})"))
                found.append(self._meta("thread_sort_index", number, number))
                for one in row:
                    found += [self._event(number, each) for each in (one, *one.parts)]
        return found

    def _event(self, thread: int, one: _Slice) -> Row:
        clock = self._one.clock
        return {
            "ph": "X",
            "name": one.name,
            **self._thread(thread),
            "ts": (clock.to_reference(one.begin_ns) - self._begin_ns) / 1e3,
            "dur": (one.end_ns - one.begin_ns) / 1e3,
            "args": {name: _argument(value) for name, value in one.numbers.items()},
        }

    def _meta(self, kind: str, thread: int, value: str | int) -> Row:
        key = "sort_index" if kind.endswith("sort_index") else "name"
        return {"ph": "M", "name": kind, **self._thread(thread), "args": {key: value}}

    def _thread(self, number: int) -> Row:
        """Perfetto knows process and thread 0 as the idle ones, and threads by their number on the machine."""
        process = self._one.rank.rank + 1
        return {"pid": process, "tid": process * _MOST_LANES + number}


def _argument(value: Any) -> Any:
    """A value for JSON, in which there is no NaN: a word, since a loss that is none is worth to be seen."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _lane_order(lane: str) -> tuple[int, str]:
    known = ("steps", "operations", "wait()", "messages made", "rounds")
    return (known.index(lane) if lane in known else len(known), lane)
