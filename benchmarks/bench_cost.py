"""What geocomm costs where there is no WAN: `python benchmarks/bench_cost.py`, some ten minutes.

Three parts, each against Gloo in the same processes, samples alternating: every collective inside one site, where
geocomm hands it to Gloo; every collective between two sites on loopback; and what a process pays that only has geocomm
installed (import of torch) or an idle process group (CPU time, memory). Every result is compared with Gloo's first.
Results: benchmarks/results/cost.md and .json. Exit status 1: a run failed or a result was wrong.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench_cost_worker import Plan

from geocomm.lab.bench.bench_report import Conditions, write_pair
from geocomm.lab.emulator.local_job import run_local_ranks

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "benchmarks" / "bench_cost_worker.py"
KIB, MIB = 1 << 10, 1 << 20
SIZES = (KIB, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB)
ONE_SITE, TWO_SITES = "one site", "two sites"
LAYOUTS: dict[str, tuple[str | None, ...]] = {ONE_SITE: (None, None), TWO_SITES: ("a", "b")}
COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "reduce",
    "send_recv",
    "barrier",
)
ONE_SITE_TARGET = 1.02
SMALL_TARGET, SMALL_BYTES = 1.3, 4 * KIB
LARGE_TARGET, LARGE_BYTES = 1.0, 64 * KIB
IMPORT_TARGET_S = 0.02
MEMORY_TARGET = 1.3


class CostError(RuntimeError):
    """A run failed, or a result was not Gloo's."""


@dataclass(frozen=True)
class Row:
    """A collective at one size in one layout. Seconds of one operation."""

    layout: str
    collective: str
    size_bytes: int
    gloo_s: float
    geocomm_s: float
    ratio: float
    """Median over the pairs of samples that ran next to each other, geocomm over Gloo."""
    low: float
    high: float
    """Quartiles of the pairs."""
    samples: int

    @property
    def target(self) -> float | None:
        """Most that the ratio may be; None: nothing was promised."""
        if self.layout == ONE_SITE:
            return ONE_SITE_TARGET
        if self.size_bytes <= SMALL_BYTES:
            return SMALL_TARGET
        return LARGE_TARGET if self.size_bytes >= LARGE_BYTES else None

    @property
    def verdict(self) -> str:
        """Missed only where the machine's noise does not explain it: the lower quartile is above as well."""
        if self.target is None:
            return ""
        shown = f"≤ {self.target:g}"
        if self.ratio <= self.target:
            return f"{shown}: met"
        return f"{shown}: {'MISSED' if self.low > self.target else 'within noise'}"


@dataclass(frozen=True)
class Idle:
    """A rank whose process groups, geocomm's and Gloo's, were used and do nothing."""

    layout: str
    cpu_share: float
    """CPU time over time."""
    held_bytes: int
    """Resident memory that came with the groups."""


@dataclass(frozen=True)
class Memory:
    """What the rank that held most memory for messages held at most, over all cases."""

    layout: str
    asked_bytes: int
    """What the messages under way needed."""
    held_bytes: int
    """What the pool had for them."""


@dataclass(frozen=True)
class Imports:
    """`import torch`, median seconds and median of the paired differences."""

    plain_s: float
    added_s: float
    pairs: int


def measure(layout: str, plan: Plan) -> tuple[Idle, Memory | None, list[Row]]:
    """Run the ranks of a layout. CostError."""
    sites = LAYOUTS[layout]
    with tempfile.TemporaryDirectory(prefix="geocomm-cost-") as folder, tempfile.TemporaryFile("w+") as log:
        plan_path = Path(folder) / "plan.json"
        plan_path.write_text(json.dumps(asdict(plan)), encoding="utf-8")
        command = [sys.executable, str(WORKER), str(plan_path), folder]
        if any(run_local_ranks(command, sites, log)):
            log.seek(0)
            raise CostError(f"{layout} failed:\n{''.join(log.readlines()[-25:])}")
        by_rank = [
            [json.loads(line) for line in (Path(folder) / f"rank-{rank}.jsonl").read_text("utf-8").splitlines()]
            for rank in range(len(sites))
        ]
    idle, *cases = zip(*by_rank, strict=True)
    memory = max((line["memory"] for line in cases[-1]), key=lambda usage: usage.get("most_held_bytes", 0))
    return (
        Idle(
            layout,
            max(line["cpu_s"] / line["seconds"] for line in idle),
            max(line["held_bytes"] for line in idle),
        ),
        Memory(layout, memory["most_asked_bytes"], memory["most_held_bytes"]) if memory else None,
        [row_of(layout, lines) for lines in cases],
    )


def row_of(layout: str, lines: Sequence[dict[str, Any]]) -> Row:
    """Of the lines that the ranks wrote of a case. CostError."""
    first = lines[0]
    if not all(line["equal"] for line in lines):
        raise CostError(f"{layout}: {first['case']} of {first['size_bytes']} bytes differs from Gloo's")
    seconds = {
        which: [
            (max(end for _, end in sample) - min(start for start, _ in sample)) / first["in_sample"]
            for sample in zip(*(line["times"][which] for line in lines), strict=True)
        ]
        for which in ("gloo", "geocomm")
    }
    ratios = [own / base for own, base in zip(seconds["geocomm"], seconds["gloo"], strict=True)]
    low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Row(
        layout,
        first["case"],
        first["size_bytes"],
        statistics.median(seconds["gloo"]),
        statistics.median(seconds["geocomm"]),
        ratio,
        low,
        high,
        len(ratios),
    )


_IMPORT = """
import importlib.metadata, sys, time
real = importlib.metadata.entry_points
hidden = sys.argv[1]
importlib.metadata.entry_points = lambda **chosen: [e for e in real(**chosen) if e.name != hidden]
start = time.perf_counter()
import torch
print(time.perf_counter() - start)
"""


def measure_import(pairs: int) -> Imports:
    """`import torch`, which calls the entry points of its group, with geocomm's hidden and not, in turns."""
    plain, added = [], []
    for pair in range(pairs + 1):
        seconds = {}
        for hidden in ("geocomm", "none") if pair % 2 else ("none", "geocomm"):
            done = subprocess.run([sys.executable, "-c", _IMPORT, hidden], capture_output=True, text=True, check=True)
            seconds[hidden] = float(done.stdout)
        plain.append(seconds["geocomm"])
        added.append(seconds["none"] - seconds["geocomm"])
    return Imports(statistics.median(plain[1:]), statistics.median(added[1:]), pairs)


def markdown(
    conditions: Conditions,
    idles: Sequence[Idle],
    memories: Sequence[Memory],
    imports: Imports | None,
    rows: Sequence[Row],
) -> str:
    """The report."""
    lines = [
        "# What geocomm costs without a WAN",
        "",
        *conditions.lines(),
        "",
        "Two ranks on loopback, fp32, no compression, plaintext. Seconds of one operation: latest end minus earliest "
        "start of a sample of operations one after the other, over their number. ratio: geocomm over Gloo, median (and "
        "quartiles) over pairs of samples that ran next to each other. send_recv: there and back.",
        "",
    ]
    if imports is not None:
        verdict = "met" if imports.added_s <= IMPORT_TARGET_S else "MISSED"
        lines.append(
            f"`import torch` takes {imports.added_s * 1e3:.1f} ms more (of {imports.plain_s:.2f} s, median of "
            f"{imports.pairs} pairs) where geocomm is installed: target ≤ {IMPORT_TARGET_S * 1e3:.0f} ms: {verdict}.\n"
        )
    lines += [
        f"An idle rank, {idle.layout}: {idle.cpu_share:.2%} of a core, {idle.held_bytes / MIB:.0f} MiB that came with "
        "the process groups (geocomm's and Gloo's).\n"
        for idle in idles
    ]
    lines += [
        f"Memory of messages, {memory.layout}: {memory.held_bytes / MIB:.1f} MiB at most, for "
        f"{memory.asked_bytes / MIB:.1f} MiB under way: "
        f"{memory.held_bytes / memory.asked_bytes:.2f} times (target {MEMORY_TARGET:g}).\n"
        for memory in memories
    ]
    for layout in LAYOUTS:
        own = [row for row in rows if row.layout == layout]
        if own:
            lines += [
                f"## {layout}",
                "",
                "| collective | size | Gloo | geocomm | ratio | quartiles | target |",
                "|---|---:|---:|---:|---:|---:|---|",
                *(_line(row) for row in own),
                "",
            ]
    return "\n".join(lines)


def _line(row: Row) -> str:
    size = "" if row.collective == "barrier" else _size(row.size_bytes)
    cells = [row.collective, size, _time(row.gloo_s), _time(row.geocomm_s), f"{row.ratio:.2f}"]
    return "| " + " | ".join([*cells, f"{row.low:.2f}-{row.high:.2f}", row.verdict]) + " |"


def _size(size_bytes: int) -> str:
    return f"{size_bytes // MIB} MiB" if size_bytes >= MIB else f"{size_bytes // KIB} KiB"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="by commas (default: all)")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES), help="by commas (default: all)")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="in bytes, by commas")
    parser.add_argument("--samples", type=int, default=15, help="pairs of each row (default 15)")
    parser.add_argument("--imports", type=int, default=15, help="pairs of `import torch` (default 15)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    arguments = parser.parse_args()
    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    sizes = tuple(int(size) for size in arguments.sizes.split(","))
    plan = Plan(tuple(arguments.collectives.split(",")), sizes, arguments.samples, idle_s=5.0)
    idles, memories, rows = [], [], []
    try:
        imports = measure_import(arguments.imports) if arguments.imports else None
        for layout in arguments.layouts.split(","):
            idle, memory, measured = measure(layout, plan)
            idles.append(idle)
            memories += [] if memory is None else [memory]
            rows += measured
    except CostError as error:
        print(f"bench_cost: {error}", file=sys.stderr)
        return 1
    report = markdown(conditions, idles, memories, imports, rows)
    path = arguments.out / "cost.md"
    document = {
        "conditions": asdict(conditions),
        "imports": None if imports is None else asdict(imports),
        "idle": [asdict(idle) for idle in idles],
        "memory": [asdict(memory) for memory in memories],
        "rows": [asdict(row) | {"target": row.target} for row in rows],
    }
    write_pair(path, report, document)
    print(f"{report}\nwritten: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
