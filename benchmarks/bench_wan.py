"""The all-reduce rows that have targets: `python benchmarks/bench_wan.py`, about four minutes.

Writes benchmarks/results/<date>-wan.md and .json. For other links, sizes and codecs: `geocomm bench wan`. Exit status
1: a run failed, a result was wrong, or, with --check, a target was missed.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

from rich.console import Console

from geocomm.wan import Link
from geocomm.wan_bench import EXACT, GLOO, Effort, Row, bench_link, bench_one_site
from geocomm.wan_bench_report import Conditions, rich_tables, verdict, write_results

RESULTS = Path(__file__).resolve().parent / "results"
SIZE_BYTES = 64 << 20
CLEAN = Link(rate_bps=1e9, delay_s=0.05)
LOSSY = replace(CLEAN, loss=0.001)
# (link, cases, target of each case's time over floor)
LINKS = (
    (CLEAN, (EXACT, "int8", GLOO), {EXACT: 1.4, "int8": 0.55}),
    (LOSSY, (EXACT, "int8", GLOO), {EXACT: 1.8}),
)
ONE_SITE_TARGET = 1.05
ONE_SITE_REPEATS = 15


def measure(effort: Effort) -> list[Row]:
    """All rows, with their targets."""
    rows: list[Row] = []
    for link, cases, targets in LINKS:
        for row in bench_link(link, cases, [SIZE_BYTES], effort=effort):
            rows.append(replace(row, target=targets.get(row.case)))
    one_site = replace(effort, repeats=max(effort.repeats, ONE_SITE_REPEATS), warmup=2, pause_s=0.05)
    for row in bench_one_site([SIZE_BYTES], effort=one_site):
        rows.append(replace(row, target=ONE_SITE_TARGET if row.case == EXACT else None))
    return rows


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="valid operations of each row (default 5)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--check", action="store_true", help="fail where a target is missed")
    arguments = parser.parse_args()
    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    rows = measure(Effort(repeats=arguments.repeats))
    for table in rich_tables(rows):
        Console().print(table)
    print(f"written: {write_results(rows, conditions, arguments.out, f'{date.today().isoformat()}-wan')}")
    failed = [row for row in rows if row.target is not None and verdict(row) != "met"]
    return 1 if arguments.check and failed else 0


if __name__ == "__main__":
    sys.exit(main())
