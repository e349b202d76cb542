"""What the all-reduce benchmark shows and writes: a table, and a dated pair of Markdown and JSON files."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from rich.table import Table

from geocomm.wan_bench import GLOO, Row

_HEADINGS = ("link", "MiB", "what", "n", "median", "min", "max", "floor", "ratio", "target", "MB/site", "error")
_SHOWN = ("MiB", "what", "n", "median", "floor", "ratio", "target", "MB/site", "error")
_LEFT = ("link", "what", "target")
_NOTES = """\
Time: latest end minus latest start over the ranks, after a barrier and a pause, of an all-reduce of normal fp32 data;
median of n verified operations after a warm-up, in seconds. Exact sums were compared with the sum computed from the
seeds, lossy ones by squared error over squared norm ("error"); all ranks ended with equal bytes. Ratio: median over
floor, where the floor (two sites) is bytes / rate + one-way delay; with one site, the median of the paired ratios to
Gloo. MB/site: IP bytes that a site sent per operation, by the emulator's counters. void: operations repeated because
the emulator delivered a packet more than 5 ms late.
"""


@dataclass(frozen=True)
class Conditions:
    """Where and how rows were measured."""

    date: str
    machine: str
    software: str
    congestion_control: str
    commit: str
    command: str
    load: str

    @classmethod
    def here(cls, command: str) -> Conditions:
        """Of this machine, now. `command`: as it was typed."""
        model = next(
            (
                line.split(":")[1].strip()
                for line in _read("/proc/cpuinfo").splitlines()
                if line.startswith("model name")
            ),
            platform.machine(),
        )
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
        return cls(
            date=datetime.now().astimezone().isoformat(timespec="seconds"),
            machine=f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, Linux {platform.release()}",
            software=f"Python {platform.python_version()}, torch {version('torch')}",
            congestion_control=_read("/proc/sys/net/ipv4/tcp_congestion_control").strip(),
            commit=git_commit(),
            command=command,
            load=" ".join(f"{load:.1f}" for load in os.getloadavg()),
        )


def git_commit() -> str:
    """The commit of the source tree around this file, and whether it has changes; `unknown` outside of one."""
    root = Path(__file__).resolve().parent.parent
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "csrc", "geocomm")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + (" with uncommitted changes" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def case_name(case: str) -> str:
    """As it is shown."""
    return "Gloo" if case == GLOO else f"geocomm {case}"


def verdict(row: Row) -> str:
    """`met`, `MISSED`, or `void`, of a row with a target."""
    if row.void or row.ratio is None or row.target is None:
        return "void"
    return "met" if row.ratio <= row.target else "MISSED"


def row_cells(row: Row) -> list[str]:
    """In the order of the headings."""
    ratio, target = row.ratio, row.target
    return [
        row.link if row.sites < 3 else f"{row.sites} sites, {row.link}",
        f"{row.size_bytes / 2**20:g}",
        case_name(row.case),
        "all void" if row.void else f"{len(row.times_s)}" + (f" ({row.voided} void)" if row.voided else ""),
        f"{row.median_s:.3f}",
        f"{min(row.times_s):.3f}",
        f"{max(row.times_s):.3f}",
        "" if row.floor_s is None else f"{row.floor_s:.3f}",
        "" if ratio is None else f"{ratio:.2f}",
        "" if target is None or ratio is None else f"≤ {target:g}: {verdict(row)}",
        "" if row.wire_bytes is None else f"{row.wire_bytes / 1e6:.1f}",
        f"{row.nmse:.1e}" if row.nmse > 1e-12 else "exact",
    ]


def rich_tables(rows: Sequence[Row]) -> list[Table]:
    """For a terminal: one per link."""
    tables: dict[str, Table] = {}
    for row in rows:
        cells = dict(zip(_HEADINGS, row_cells(row), strict=True))
        link = cells["link"]
        if link not in tables:
            tables[link] = Table(title=link, title_justify="left", box=None, padding=(0, 1, 0, 0))
            for heading in _SHOWN:
                tables[link].add_column(heading, justify="left" if heading in _LEFT else "right", no_wrap=True)
        tables[link].add_row(*(cells[heading] for heading in _SHOWN))
    return list(tables.values())


def markdown(rows: Sequence[Row], conditions: Conditions) -> str:
    """The whole report."""
    lines = [
        "# All-reduce over an emulated WAN",
        "",
        f"- date: {conditions.date}",
        f"- machine: {conditions.machine}; load averages at the start: {conditions.load}",
        f"- software: {conditions.software}; system's TCP congestion control (Gloo's): {conditions.congestion_control}",
        f"- commit: {conditions.commit}",
        f"- command: `{conditions.command}`",
        "",
        "| " + " | ".join(_HEADINGS) + " |",
        "|" + "|".join("---" if heading in _LEFT else "---:" for heading in _HEADINGS) + "|",
        *("| " + " | ".join(row_cells(row)) + " |" for row in rows),
        "",
        _NOTES,
    ]
    return "\n".join(lines)


def write_results(rows: Sequence[Row], conditions: Conditions, folder: Path, name: str) -> Path:
    """Write NAME.md and NAME.json into `folder`; returns the former's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.md"
    path.write_text(markdown(rows, conditions), encoding="utf-8")
    document = {"conditions": vars(conditions), "rows": [row.to_dict() for row in rows]}
    path.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path
