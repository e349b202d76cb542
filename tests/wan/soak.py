"""Random faults over an emulated WAN with TLS, for as long as one likes, while the ranks verify every all-reduce.

    soak.py [--minutes 30] [--sites 3] [--seed N] [--out benchmarks/results]

Faults follow each other at random, from a seed that is printed; each has to be over, as far as the ranks can tell,
within a bounded time. Writes soak.md; the exit status is 0 if the verdict is good.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanReport
from support.fault_run import MEMORY_SLACK_KIB, FaultRun

REPOSITORY = Path(__file__).resolve().parents[2]
LINK = EmulatedLink(rate_bps=50e6, delay_s=0.02, loss=0.0005)
ELEMENTS = 100_000
GRACE_S = 20.0
"""What a fault may cost beyond its own time: connections are dialed again, TCP waits between its attempts."""
SETTLED_ROUNDS = 50
"""Rounds at the end, without faults, over which memory and descriptors are judged; as many at the beginning."""


@dataclass
class Fault:
    """One that is being applied: what, for how long."""

    kind: str
    seconds: float
    applied: Callable[[], AbstractContextManager[None]]


@dataclass
class Outcome:
    """What has happened so far."""

    faults: Counter[str] = field(default_factory=Counter)
    worst_excess_s: float = 0.0
    """The longest wait for a round, of all ranks, beyond the time of its fault."""
    worst_kind: str = "none"
    problems: list[str] = field(default_factory=list)


def draw(run: FaultRun, chance: random.Random) -> Fault:
    """A fault, and where and how long."""
    src, dst = chance.sample(list(run.sites), 2)
    rank = chance.randrange(len(run.sites))
    kinds: dict[str, tuple[float, float, Callable[[], AbstractContextManager[None]]]] = {
        "blackhole": (0.5, 15, lambda: run.changed(src, dst, up=False)),
        "one direction dead": (0.5, 15, lambda: run.changed(src, dst, up=False, one_way=True)),
        "a tenth of the rate": (3, 10, lambda: run.changed(src, dst, rate=LINK.rate_bps / 10)),
        "5 % loss": (3, 10, lambda: run.changed(src, dst, loss=0.05)),
        "reordering, copies": (3, 10, lambda: run.changed(src, dst, reorder=0.1, duplicate=0.05)),
        "single resets": (2, 6, lambda: run.changed(src, dst, reset=0.005)),
        "reset of all streams": (0.1, 0.3, lambda: run.changed(src, dst, reset=1.0)),
        "process stopped": (1, 20, lambda: run.stopped(rank)),
    }
    kind = chance.choice(list(kinds))
    shortest, longest, applied = kinds[kind]
    return Fault(kind, chance.uniform(shortest, longest), applied)


def inject(run: FaultRun, fault: Fault, outcome: Outcome) -> None:
    """One fault from beginning to end. AssertionError: the ranks did not get over it."""
    seen = [len(log.having("round")) for log in run.logs]
    with fault.applied():
        time.sleep(fault.seconds)
    run.wait_rounds(5, fault.seconds + GRACE_S + 60)
    longest = max(
        line["took"] for log, first in zip(run.logs, seen, strict=True) for line in log.having("round")[first:]
    )
    outcome.faults[fault.kind] += 1
    excess = longest - fault.seconds
    if excess > outcome.worst_excess_s:
        outcome.worst_excess_s, outcome.worst_kind = excess, fault.kind
    if excess > GRACE_S:
        outcome.problems.append(f"{fault.kind} of {fault.seconds:.1f} s held up a round for {longest:.1f} s")


def levels(run: FaultRun, name: str, first: bool) -> list[int]:
    """The median of a figure of each rank, at the beginning or at the end."""
    part = slice(5, 5 + SETTLED_ROUNDS) if first else slice(-SETTLED_ROUNDS, None)
    figures = [[line[name] for line in log.having("round")[part]] for log in run.logs]
    return [round(statistics.median(of_rank)) if of_rank else 0 for of_rank in figures]


def judge_growth(run: FaultRun, outcome: Outcome) -> None:
    """Descriptors may not grow at all, memory by what buffers take when a link stands still."""
    for rank, (before, after) in enumerate(zip(levels(run, "fds", True), levels(run, "fds", False), strict=True)):
        if after > before:
            outcome.problems.append(f"rank {rank} has {after} descriptors, and had {before}")
    for rank, (before, after) in enumerate(
        zip(levels(run, "rss_kib", True), levels(run, "rss_kib", False), strict=True)
    ):
        if after > before + MEMORY_SLACK_KIB:
            outcome.problems.append(f"rank {rank} has {after} KiB, and had {before}")


def text_of(run: FaultRun, outcome: Outcome, report: WanReport | None, seconds: float, arguments: list[str]) -> str:
    """The result, for people."""
    commit = subprocess.run(
        ["git", "-C", str(REPOSITORY), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    rounds = min(len(log.having("round")) for log in run.logs)
    longest = run.longest_round_s(5) if rounds > 5 else float("nan")
    table = [f"| {kind} | {count} |" for kind, count in sorted(outcome.faults.items())]
    grown = [
        f"| {rank} | {rss0 / 1024:.1f} | {rss1 / 1024:.1f} | {fds0} | {fds1} |"
        for rank, (rss0, rss1, fds0, fds1) in enumerate(
            zip(
                *(levels(run, name, first) for name in ("rss_kib", "fds") for first in (True, False)),
                strict=True,
            )
        )
    ]
    lines = [
        "# Soak: random faults over an emulated WAN, with TLS",
        "",
        f"- date: {datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')}",
        f"- machine: {os.cpu_count()} cores, Linux {platform.release()}; load averages at the end: "
        + " ".join(f"{load:.1f}" for load in os.getloadavg()),
        f"- commit: {commit}",
        f"- command: `python tests/wan/soak.py {' '.join(arguments)}`",
        f"- {len(run.sites)} sites of one rank; links of {LINK.rate_bps / 1e6:g} Mbit/s, {LINK.delay_s * 2e3:g} ms "
        f"round trip, {LINK.loss * 100:g} % loss; exact all-reduces of {ELEMENTS * 4 // 1024} KiB",
        "",
        f"**Verdict: {'BAD' if outcome.problems else 'good'}.** {rounds} all-reduces in {seconds / 60:.1f} minutes, "
        "each compared on every rank with the sum that it must give; equal bits on all ranks.",
        "",
        *(f"- {problem}" for problem in outcome.problems),
        f"- {outcome.faults.total()} faults; connections made again: {run.total('resumes')}; segments sent again by "
        f"geocomm: {run.total('resent_segments')}"
        + (f"; TCP resets on the links: {sum(link.resets for link in report.links)}" if report else ""),
        f"- longest all-reduce: {longest:.1f} s; most that a fault cost beyond its own time: "
        f"{outcome.worst_excess_s:.1f} s ({outcome.worst_kind}; allowed: {GRACE_S:g} s)",
        "",
        "| fault | times |",
        "|---|---:|",
        *table,
        "",
        "| rank | MiB resident, before | after | descriptors, before | after |",
        "|---:|---:|---:|---:|---:|",
        *grown,
        "",
        f"Before, after: medians of {SETTLED_ROUNDS} all-reduces without faults.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--out", type=Path, default=REPOSITORY / "benchmarks" / "results")
    options = parser.parse_args()
    arguments = [f"--minutes {options.minutes:g}", f"--sites {options.sites}", f"--seed {options.seed}"]
    print(f"soak: {' '.join(arguments)}", flush=True)
    chance, outcome = random.Random(options.seed), Outcome()
    environment = {"FAULT_ELEMENTS": str(ELEMENTS)}
    with tempfile.TemporaryDirectory(prefix="geocomm-soak-") as folder:
        topology = EmulatedWan.uniform(options.sites, LINK)
        with FaultRun(Path(folder), topology, encrypted=True, environment=environment) as run:
            report = None
            began = time.monotonic()
            try:
                run.wait_rounds(SETTLED_ROUNDS, 120)
                while time.monotonic() < began + 60 * options.minutes:
                    fault = draw(run, chance)
                    print(f"{time.monotonic() - began:7.1f} s  {fault.kind}, {fault.seconds:.1f} s", flush=True)
                    inject(run, fault, outcome)
                    time.sleep(chance.uniform(0, 2))
                run.wait_rounds(SETTLED_ROUNDS + 20, 120)
                report = run.finish()
                judge_growth(run, outcome)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                outcome.problems.append(str(error))
            text = text_of(run, outcome, report, time.monotonic() - began, arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "soak.md"
    path.write_text(text, encoding="utf-8")
    print(f"{text}\nsoak: wrote {path}")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
