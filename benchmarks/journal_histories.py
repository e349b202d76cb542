"""Random histories of simulated elastic runs: `PYTHONPATH=tests python benchmarks/journal_histories.py`,
10 minutes on 2 cores.

Each history has 2 to 5 sites, one of them three times slower, 60 virtual seconds with a fault every 3 s, then peace.
`tests/support/journal/simulated_run.py` has the rules that every one must keep. `--first` takes other seeds. Exit
status 1: a history broke a rule, or stood still after the faults; its seed is named.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from geocomm.elastic.journal.entries import AnyRound
from support.journal.simulated_run import FAULTS, SimulatedRun

RESULT = Path(__file__).parent / "results" / "journal-histories.md"


@dataclass
class Counts:
    """Of some histories."""

    histories: int = 0
    virtual_s: float = 0.0
    entries: Counter[str] = field(default_factory=Counter[str])
    frames: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    broken: list[str] = field(default_factory=list[str])
    stood_still: list[int] = field(default_factory=list[int])
    counted: int = 0
    repeated: int = 0
    """Of the sequences that counted, those that did before."""

    def add(self, other: Counts) -> None:
        """Take in those of others."""
        self.histories += other.histories
        self.virtual_s += other.virtual_s
        self.entries += other.entries
        self.frames += other.frames
        self.faults += other.faults
        self.broken += other.broken
        self.stood_still += other.stood_still
        self.counted += other.counted
        self.repeated += other.repeated


def run(seeds: range, lost_disks: bool) -> Counts:
    """Histories of these seeds."""
    counts = Counts()
    faults = FAULTS if lost_disks else {kind: weight for kind, weight in FAULTS.items() if kind != "disk"}
    for seed in seeds:
        history = SimulatedRun(seed, faults=faults).run()
        counts.histories += 1
        counts.virtual_s += history.seconds
        counts.entries += Counter(entry.kind for entry in history.entries)
        counts.frames += sum(len(entry.members) for entry in history.entries if isinstance(entry, AnyRound))
        counts.faults += history.faults
        counts.counted += history.counted
        counts.repeated += history.repeated
        if history.broken:
            counts.broken.append(f"seed {seed}: {history.broken}")
        if history.stood_still:
            counts.stood_still.append(seed)
    return counts


def table(rows: dict[str, Counts]) -> str:
    """One column for each of the two kinds of histories."""
    lines = ["| | " + " | ".join(rows) + " |", "|---|" + "---:|" * len(rows)]

    def line(name: str, values: list[float]) -> None:
        lines.append(f"| {name} | " + " | ".join(f"{value:,.0f}" for value in values) + " |")

    counts = [*rows.values()]
    line("histories", [one.histories for one in counts])
    line("virtual hours", [one.virtual_s / 3600 for one in counts])
    line("entries", [one.entries.total() for one in counts])
    for kind in ("round", "skip", "join", "ready", "away", "left", "snapshot", "kept", "deal", "taken_back"):
        line(f"entries: {kind}", [one.entries[kind] for one in counts])
    line("frames that counted", [one.frames for one in counts])
    line("sequences that counted, in each fragment", [one.counted for one in counts])
    line("repeated, since a site died", [one.repeated for one in counts])
    line("faults", [one.faults.total() for one in counts])
    for kind in FAULTS:
        line(f"faults: {kind}", [one.faults[kind] for one in counts])
    line("broke a rule", [len(one.broken) for one in counts])
    line("stood still", [len(one.stood_still) for one in counts])
    return "\n".join(lines)


def main() -> int:
    """Run them, print the table, and write it where it was asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    began = time.monotonic()
    rows = {"disks lost too": Counts(), "no disk lost": Counts()}
    each = 50
    with ProcessPoolExecutor(options.workers) as pool:
        seeds = [range(first, first + each) for first in range(options.first, options.first + options.histories, each)]
        for index, counts in enumerate(pool.map(run, seeds, [i % 2 == 0 for i in range(len(seeds))])):
            rows[[*rows][index % 2]].add(counts)
    text = table(rows)
    seconds = time.monotonic() - began
    print(f"{text}\n\n{seconds:.0f} s")
    for counts in rows.values():
        for broken in [*counts.broken, *(f"seed {seed}: stood still" for seed in counts.stood_still)]:
            print(broken)
    if options.write:
        RESULT.write_text(
            "# Random histories of simulated elastic runs\n\n"
            f"`{' '.join(['python', 'benchmarks/journal_histories.py', *sys.argv[1:]])}`, Python "
            f"{platform.python_version()}, {options.workers} processes,\n{seconds:.0f} s. A history has 2 to 5 sites, "
            "one of them three times slower, and messages of 0.02 to 0.4 s without\norder between different pairs. For "
            "60 virtual seconds a fault comes every 3 s, then there is peace. Rules and\nfaults: "
            "`tests/support/journal/simulated_run.py`. What takes minutes in a real run is short there: a new attempt\n"
            f"after 12 s, a skip after 20 s.\n\n{text}\n"
        )
    return int(any(counts.broken or counts.stood_still for counts in rows.values()))


if __name__ == "__main__":
    raise SystemExit(main())
