"""What the reports of all benchmarks have in common: where and how was measured, and a pair of files."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from geocomm.core.units import count_text


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
        """The conditions of this machine now; `command` as it was typed."""
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
            machine=f"{model}, {count_text(len(os.sched_getaffinity(0)), 'core')}, {memory:.0f} GiB, "
            f"Linux {platform.release()}",
            software=f"Python {platform.python_version()}, torch {version('torch')}",
            congestion_control=_read("/proc/sys/net/ipv4/tcp_congestion_control").strip(),
            commit=git_commit(),
            command=command,
            load=_load(),
        )

    def lines(self) -> list[str]:
        """A Markdown list."""
        return [
            f"- {self.date}, commit {self.commit}, `{self.command}`",
            f"- {self.machine}; load averages at the start: {self.load}",
            f"- {self.software}; system's TCP congestion control (Gloo's): {self.congestion_control}",
        ]


def load_at_end() -> str:
    """One more line of that list, once all is measured."""
    return f"- load averages at the end: {_load()}"


def page(title: str, conditions: Conditions, text: str, *table: str) -> str:
    """A report in Markdown, once all is measured: the conditions, a paragraph, and the lines of a table."""
    return "\n".join([f"# {title}", "", *conditions.lines(), load_at_end(), "", text, "", *table])


def table_lines(headings: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str] = ()) -> list[str]:
    """A table in Markdown. Numbers stand in all columns but the first and those in `left`."""
    rule = ["---" if name in (headings[0], *left) else "---:" for name in headings]
    return ["| " + " | ".join(headings) + " |", f"|{'|'.join(rule)}|", *("| " + " | ".join(row) + " |" for row in rows)]


BY_HAND = "<!-- written by hand: kept when the report is written again -->"
"""A line of a report: what people add stands below it."""


def write_pair(path: Path, text: str, document: Mapping[str, Any]) -> Path:
    """Write PATH, a Markdown file in a folder that is made, and `document` in JSON beside it; returns `path`.

    What stands below the line BY_HAND of a file that is there already is kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _, line, below = _read(str(path)).partition(f"\n{BY_HAND}\n")
    path.write_text(f"{text.rstrip()}\n{line}{below}", encoding="utf-8")
    path.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


def git_commit() -> str:
    """The commit of the source tree around this file, and whether it has changes; `unknown` outside of one."""
    root = Path(__file__).resolve().parents[3]
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "csrc", "geocomm")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + (" with uncommitted changes" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _load() -> str:
    return " ".join(f"{load:.1f}" for load in os.getloadavg())


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
