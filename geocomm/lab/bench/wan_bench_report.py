"""What the all-reduce benchmark shows and writes: tables, and a pair of Markdown and JSON files of sections.

A section is what one run measured; a report may be made of runs at different times, each with its own conditions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.table import Table

from geocomm.core.console import table_of
from geocomm.core.units import count_text
from geocomm.lab.bench.bench_report import Conditions, table_lines, write_pair
from geocomm.lab.bench.wan_bench import GLOO, GLOO_SLICED, WanRow

_HEADINGS = (
    "link",
    "MiB",
    "what",
    "n",
    "median",
    "min",
    "max",
    "floor",
    "ratio",
    "target",
    "MB/site",
    "beside",
    "fds",
    "error",
)
_SHOWN = ("MiB", "what", "n", "median", "floor", "ratio", "target", "MB/site", "error")
_LEFT = ("link", "what", "target")
_NOTES = """\
Time: latest end minus latest start over the ranks, after a barrier and a pause, of an all-reduce of normal fp32 data;
median of n verified operations after a warm-up, in seconds. Exact sums were compared with the sum computed from the
seeds, lossy ones by squared error over squared norm ("error"); all ranks ended with equal bytes. Ratio: median over
floor, where the floor is bytes / rate + one-way delay, or with N > 2 sites 2 x bytes / (N x rate) + RTT where that is
less; with one site, the median of the paired ratios to Gloo. MB/site: IP bytes that a site sent per operation, by the
emulator's counters. beside: MiB that a rank held at most during an operation, beside its tensors and the process as it
was before the groups were made. fds: open file descriptors of a rank. void: operations repeated because the emulator
delivered a packet more than 5 ms late. paced at: GEOCOMM_MAX_PACING_BPS, as a part of the link's rate. Gloo x 8: its
interface named eight times, and eight slices of the tensor at once, the best that it can be brought to.
"""


@dataclass(frozen=True)
class BenchSection:
    """What one run measured."""

    title: str
    conditions: Conditions
    rows: tuple[WanRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """The section as plain values, for JSON."""
        return {
            "title": self.title,
            "conditions": vars(self.conditions),
            "rows": [row.to_dict() for row in self.rows],
        }


def case_name(row: WanRow) -> str:
    """The name of a row's case, as tables show it."""
    name = {GLOO: "Gloo", GLOO_SLICED: "Gloo x 8"}.get(row.case, f"geocomm {row.case}")
    tls = ", TLS" if row.encrypted else ""
    return name + tls + (f", paced at {row.pacing:g}" if row.pacing is not None else "")


def verdict(row: WanRow) -> str:
    """`met`, `MISSED`, or `void`, of a row with a target."""
    if row.void or row.ratio is None or row.target is None:
        return "void"
    return "met" if row.ratio <= row.target else "MISSED"


def _where(row: WanRow) -> str:
    ranks = f" of {row.ranks_per_site} ranks" if row.ranks_per_site > 1 else ""
    return row.link if row.sites < 3 and not ranks else f"{count_text(row.sites, 'site')}{ranks}, {row.link}"


def row_cells(row: WanRow) -> list[str]:
    """The cells of a row, in the order of the headings."""
    ratio, target = row.ratio, row.target
    return [
        _where(row),
        f"{row.size_bytes / 2**20:g}",
        case_name(row),
        "all void" if row.void else f"{len(row.times_s)}" + (f" ({row.voided} void)" if row.voided else ""),
        f"{row.median_s:.3f}",
        f"{min(row.times_s):.3f}",
        f"{max(row.times_s):.3f}",
        "" if row.floor_s is None else f"{row.floor_s:.3f}",
        "" if ratio is None else f"{ratio:.2f}",
        "" if target is None or ratio is None else f"≤ {target:g}: {verdict(row)}",
        "" if row.wire_bytes is None else f"{row.wire_bytes / 1e6:.1f}",
        f"{max(row.beside_bytes, 0) / 2**20:.0f}",
        f"{row.descriptors}",
        f"{row.nmse:.1e}" if row.nmse > 1e-12 else "exact",
    ]


def rich_tables(rows: Sequence[WanRow]) -> list[Table]:
    """Tables for a terminal, one per link."""
    by_link: dict[str, list[list[str]]] = {}
    for row in rows:
        cells = dict(zip(_HEADINGS, row_cells(row), strict=True))
        by_link.setdefault(cells["link"], []).append([cells[heading] for heading in _SHOWN])
    return [table_of(_SHOWN, shown, title=link, text=_LEFT) for link, shown in by_link.items()]


def markdown(sections: Sequence[BenchSection]) -> str:
    """The whole report."""
    lines = ["# All-reduce over an emulated WAN", ""]
    for section in sections:
        lines += [
            f"## {section.title}",
            "",
            *section.conditions.lines(),
            "",
            *table_lines(_HEADINGS, map(row_cells, section.rows), _LEFT),
            "",
        ]
    return "\n".join([*lines, _NOTES])


def write_results(sections: Sequence[BenchSection], path: Path) -> Path:
    """Write PATH, a Markdown file, and its data in JSON beside it; returns `path`."""
    return write_pair(path, markdown(sections), {"sections": [section.to_dict() for section in sections]})


def read_results(path: Path) -> list[BenchSection]:
    """The sections of a report that write_results() made; none where there is no such file."""
    data = path.with_suffix(".json")
    if not data.exists():
        return []
    sections = json.loads(data.read_text(encoding="utf-8"))["sections"]
    return TypeAdapter(list[BenchSection]).validate_python(sections)  # also of before all of today's fields
