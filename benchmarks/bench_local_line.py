"""Local steps over an emulated line: `python benchmarks/bench_local_line.py`, about half an hour on two cores.

(1) Seconds of a step, for each site training by itself, with local steps, and with a reduction in every step: over
lines of several rates, round trips and losses. utilisation: the mean step of the same loop without rounds, over the
mean step with them. exposed: what steps waited for results; stolen: the rest, which is what rounds take from the
trainer's core (reading and writing the model, codec, outer step, and the emulator's own work where cores are few).
(2) The longest step while the line is down for a minute in the middle of the training, over the median.
(3) Bytes that a site sends for a step, as a product: interval x dtype x codec.

The model, the data and the loop are those of bench_train.py. Results: benchmarks/results/local-line.md, .json and .png.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench_train import ROOT, TIMED, WORKER, Runs
from bench_train_worker import ALONE, LOCAL, TORCHFT, TORCHFT_OVERLAP, Plan

from geocomm.lab.bench.bench_report import Conditions, write_pair
from geocomm.lab.emulator.emulated_keys import site_environment
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanRun
from geocomm.lab.emulator.local_job import bare_environment

LINES = {
    "200 Mbit/s, 300 ms, 0.1 % loss": EmulatedLink(rate_bps=2e8, delay_s=0.15, loss=0.001),
    "50 Mbit/s, 100 ms, 0.5 % loss": EmulatedLink(rate_bps=5e7, delay_s=0.05, loss=0.005),
}
EVERY = "@"
"""Before the steps between two rounds, where they are not LOCAL_PLAN's: local-int4@100."""
OVERLAP = "~"
"""Before the least steps from a round's beginning to its merge, where they are not "auto": local-int4~5."""
METHODS = (
    ALONE,
    LOCAL + "int4",
    LOCAL + "int4" + OVERLAP + "5",
    LOCAL + "int4" + EVERY + "100",
    LOCAL + "loco",
    LOCAL + "none",
    TORCHFT,
    TORCHFT_OVERLAP,
    "balanced",
    "gloo",
)
# Steps of some seconds, or of minutes: a few are enough.
SHORT = {"gloo": TIMED.untimed_steps + 3, "balanced": TIMED.untimed_steps + 30}
# glibc takes and returns large blocks by mmap until it has seen some freed. Rounds free large blocks, so without this a
# loop with rounds is faster by a tenth than the same loop alone: its steps touch no new pages.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**31 - 1), "MALLOC_TRIM_THRESHOLD_": str(2**32 - 1)}
LOCAL_PLAN = replace(TIMED, steps=TIMED.untimed_steps + 120)
UNTIMED_CYCLES = 2
"""Left out of the times of local steps: memory that a fragment's first rounds touch is new to the process."""


@dataclass(frozen=True)
class Row:
    """A method over a line."""

    line: str
    method: str
    every: int
    """Steps between two rounds, with local steps."""
    parameters: int
    steps: int
    mean_s: float
    median_s: float
    longest_s: float
    cpu_s: float
    """CPU time of a step, of all threads of the first rank."""
    alone_s: float
    """Mean step of the loop without rounds, in a run of its own."""
    rounds: dict[str, Any]

    @property
    def exposed(self) -> float:
        """Part of the time of the steps."""
        return self.rounds.get("waited_seconds", 0.0) / (self.mean_s * self.steps)


def measure(runs: Runs, line: str, methods: tuple[str, ...]) -> list[Row]:
    """All methods over one line."""
    found, alone_s = [], 0.0
    for method in methods:
        name, _, overlap = method.partition(OVERLAP)
        name, _, every = name.partition(EVERY)
        plan = replace(LOCAL_PLAN, method=name, steps=SHORT.get(method, LOCAL_PLAN.steps))
        plan = replace(plan, overlap=int(overlap) if overlap else None)
        if name.startswith((LOCAL, ALONE)):
            plan = _without_first_cycles(plan, int(every or LOCAL_PLAN.every))
        result = runs.result(plan, LINES[line])
        times = result["steps_s"]
        if method == ALONE:
            alone_s = statistics.mean(times)
        found.append(
            Row(
                line,
                method,
                plan.every,
                result["parameters"],
                len(times),
                statistics.mean(times),
                statistics.median(times),
                max(times),
                result["cpu_s"],
                alone_s,
                result["rounds"],
            )
        )
    return found


def _without_first_cycles(plan: Plan, every: int) -> Plan:
    """With so many steps between two rounds, and as many timed steps as before."""
    more = UNTIMED_CYCLES * every
    return replace(plan, every=every, steps=plan.steps + more, untimed_steps=plan.untimed_steps + more)


def measure_cut(line: str, seconds: float) -> dict[str, Any]:
    """The times of the steps of a run whose line is down for so long in the middle."""
    with tempfile.TemporaryDirectory(prefix="geocomm-local-") as scratch, tempfile.TemporaryFile("w+") as log:
        plan, out = Path(scratch) / "plan.json", Path(scratch) / "out.json"
        timed = replace(TIMED, method=LOCAL + "int4", steps=TIMED.untimed_steps + 480)
        plan.write_text(json.dumps(asdict(_without_first_cycles(timed, timed.every))), encoding="utf-8")
        command = [sys.executable, str(WORKER), str(plan), str(out)]
        environment = site_environment(bare_environment(), None) | {"GEOCOMM_LINK_DEADLINE": str(4 * seconds)}
        with WanRun(
            EmulatedWan.uniform(2, LINES[line]),
            command,
            environment=environment,
            stdout=log,
            stderr=log,
            master_port=29523,
        ) as run:
            cut = threading.Thread(target=_cut, args=(run, seconds), daemon=True)
            cut.start()
            status = run.wait()
        if status != 0:
            log.seek(0)
            raise SystemExit(f"the run with a line that is down ended with {status}:\n{''.join(log.readlines()[-25:])}")
        return json.loads(out.read_text(encoding="utf-8"))


def _cut(run: WanRun, seconds: float) -> None:
    time.sleep(60)
    run.control.set_link("site0", "site1", up=False)
    time.sleep(seconds)
    run.control.set_link("site0", "site1", up=True)


def report(conditions: Conditions, rows: list[Row], cut: dict[str, Any] | None, cut_s: float) -> str:
    """Markdown."""
    lines = ["# Local steps over an emulated line", "", *conditions.lines(), ""]
    for name in dict.fromkeys(row.line for row in rows):
        lines += [
            f"## {name}",
            "",
            f"{rows[0].parameters / 1e6:.1f} M parameters, two sites of one rank; H = {LOCAL_PLAN.every}, int4 "
            "+ error feedback unless the row says otherwise. "
            f"The first {UNTIMED_CYCLES} H steps are left out of these rows and of alone: a fragment's first rounds "
            "touch memory that is new to the process. "
            "torchft: its DiLoCo over Gloo, with the same H, one fragment in float32, no overlap or 5 steps of it. "
            "alone: no communication, the same loop, in a run of its own. Where equal runs differ by more than the "
            "rounds take, utilisation and stolen say no more than that (negative: the run alone was slower).",
            "",
            "| method | steps | mean s | longest s | CPU s | utilisation | exposed | stolen | rounds | held back |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for row in (row for row in rows if row.line == name):
            used = row.alone_s / row.mean_s
            local = row.method.startswith(LOCAL)
            stolen = f"{1 - used - row.exposed:.1%}" if local else ""
            lines.append(
                f"| {row.method} | {row.steps} | {row.mean_s:.3f} | {row.longest_s:.2f} | {row.cpu_s:.3f} | {used:.1%} "
                f"| {f'{row.exposed:.1%}' if local else ''} | {stolen} | {row.rounds.get('rounds', '')} "
                f"| {row.rounds.get('held_back', '')} |"
            )
        lines.append("")
    products = [row for row in rows if row.rounds.get("elements_sent")]
    if products:
        lines += [
            "## Bytes",
            "",
            "Bytes of a site's frames for a step, against 4 bytes an element in every step.",
            "",
            "| method | interval | dtype and codec, against fp32 | product | line |",
            "|---|---:|---:|---:|---|",
        ]
        for row in products:
            codec = 4 * row.rounds["elements_sent"] / row.rounds["wire_bytes"]
            lines.append(f"| {row.method} | {row.every} | {codec:.2f} | {row.every * codec:.0f} | {row.line} |")
        lines.append("")
    if cut is not None:
        times, rounds = cut["steps_s"], cut["rounds"]
        median = statistics.median(times)
        lines += [
            f"## A line that is down for {cut_s:.0f} s",
            "",
            f"{len(times)} steps; median {median:.3f} s, 99th of 100 {sorted(times)[int(0.99 * len(times))]:.3f} s, "
            f"longest {max(times):.3f} s: {max(times) / median:.2f} x the median. Rounds: {rounds['rounds']}; steps "
            f"for which a round was held back: {rounds['held_back']}; waited for results: "
            f"{rounds['waited_seconds']:.3f} s. Both sites ended with equal bits (`finish` compares them).",
            "",
        ]
    return "\n".join(lines)


def plot(rows: list[Row], path: Path) -> None:
    """A panel for each line: the mean step of every method, and a mark at the longest."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = list(dict.fromkeys(row.line for row in rows))
    figure = Figure(figsize=(9, 0.4 * len(rows) + 1.2 * len(lines)), layout="constrained")
    FigureCanvasAgg(figure)
    for panel, line in zip(figure.subplots(len(lines), 1, squeeze=False)[:, 0], lines, strict=True):
        shown = [row for row in rows if row.line == line]
        panel.barh([row.method for row in shown], [row.mean_s for row in shown], color="#9ecae1", label="mean")
        panel.plot([row.longest_s for row in shown], range(len(shown)), "|", color="#08519c", label="longest")
        panel.set_xscale("log")
        panel.invert_yaxis()
        panel.grid(axis="x", alpha=0.3)
        panel.set_title(f"{line}, {shown[0].parameters / 1e6:.1f} M parameters", fontsize=9)
        panel.set_xlabel("seconds of a step")
        panel.legend(fontsize=7)
    figure.savefig(path, dpi=130)


def main() -> int:
    """Run what is missing, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS), help="by commas; the first is always 'alone'")
    parser.add_argument("--lines", type=int, default=len(LINES), help="how many of the lines")
    parser.add_argument("--cut", type=float, default=60.0, help="seconds for which the line is down; 0: leave it out")
    parser.add_argument("--fresh", action="store_true", help="run again what has been run")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    arguments = parser.parse_args()
    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    os.environ |= KEEP_MEMORY
    runs = Runs(ROOT / "build" / "bench-train", ROOT / "build" / "bench-train", fresh=arguments.fresh)
    methods = (ALONE, *(method for method in arguments.methods.split(",") if method != ALONE))
    rows = [row for line in list(LINES)[: arguments.lines] for row in measure(runs, line, methods)]
    cut = measure_cut(next(iter(LINES)), arguments.cut) if arguments.cut else None
    text = report(conditions, rows, cut, arguments.cut)
    path = arguments.out / "local-line.md"
    plot(rows, path.with_suffix(".png"))
    write_pair(
        path,
        f"{text}\n![Seconds of a step by method]({path.stem}.png)\n",
        {"rows": list(map(asdict, rows)), "cut": cut},
    )
    print(text, f"written: {path}", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
