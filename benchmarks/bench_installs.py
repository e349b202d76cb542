"""Small operations of two installs of geocomm: `python benchmarks/bench_installs.py WHEEL_PYTHON BUILD_PYTHON`.

Each argument is a Python that has geocomm: one from a wheel, which carries a module for each torch, the other from
a build for the torch that is there. Two ranks of two sites over loopback, float32, without compression and keys;
results are compared with the exact ones first. Jobs of the two installs take turns. A row has the median, over jobs, of
the median seconds of one operation, and the median and quartiles of the ratios of jobs that ran one after the other.

A run stands in benchmarks/results/installs.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SIZES = (1 << 10, 64 << 10, 1 << 20)
OPERATIONS = ("all_reduce", "broadcast", "all_gather")
SAMPLES, IN_SAMPLE = 40, 16
Seconds = dict[str, float]


def rank(out: Path) -> None:
    """One rank; rank 0 writes the median seconds of each operation to `out`."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("geocomm")
    seconds: Seconds = {}
    for size in SIZES:
        whole = torch.ones(size // 4)
        parts = [torch.empty(size // 8) for _ in range(2)]
        own = torch.full((size // 8,), float(dist.get_rank()))
        dist.all_reduce(whole)
        dist.all_gather(parts, own)
        assert torch.equal(whole, torch.full_like(whole, 2.0))
        assert all(torch.equal(part, torch.full_like(part, float(peer))) for peer, part in enumerate(parts))
        zeros = torch.zeros(size // 4)  # sums of sums would end at infinity
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda zeros=zeros: dist.all_reduce(zeros),
            "broadcast": lambda zeros=zeros: dist.broadcast(zeros, 0),
            "all_gather": lambda parts=parts, own=own: dist.all_gather(parts, own),
        }
        for name, call in calls.items():
            samples: list[float] = []
            for _ in range(SAMPLES):
                dist.barrier()
                began = time.perf_counter()
                for _ in range(IN_SAMPLE):
                    call()
                samples.append((time.perf_counter() - began) / IN_SAMPLE)
            seconds[f"{name} {size >> 10} KiB"] = statistics.median(samples)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(seconds))
    dist.destroy_process_group()


def job(python: str) -> Seconds:
    """Of an install. SystemExit where it fails."""
    from geocomm.lab.emulator.local_job import run_local_ranks

    with tempfile.TemporaryDirectory(prefix="geocomm-installs-") as folder, tempfile.TemporaryFile("w+") as log:
        out = Path(folder) / "seconds.json"
        if any(run_local_ranks([python, __file__, "--rank", str(out)], ("a", "b"), log)):
            log.seek(0)
            sys.exit(f"{python} failed:\n{log.read()[-6000:]}")
        return json.loads(out.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description="Small operations of two installs of geocomm.")
    parser.add_argument("python", nargs="*", help="the wheel's, then the build's")
    parser.add_argument("--pairs", type=int, default=9, help="jobs of each")
    parser.add_argument("--out", type=Path, help="the report, in Markdown")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank(arguments.rank)
        return
    if len(arguments.python) != 2:
        parser.error("two Pythons are needed, each with geocomm: that of the wheel, and that of the build")
    from geocomm.lab.bench.bench_report import Conditions, page, table_lines

    conditions = Conditions.here(f"python {shlex.join(sys.argv)}")
    of_wheel: list[Seconds] = []
    of_build: list[Seconds] = []
    for pair in range(arguments.pairs):
        turns = list(zip(arguments.python, (of_wheel, of_build), strict=True))
        for python, jobs in turns if pair % 2 else reversed(turns):
            jobs.append(job(python))
    rows: list[list[str]] = []
    for name in of_wheel[0]:
        ratios = [wheel[name] / build[name] for wheel, build in zip(of_wheel, of_build, strict=True)]
        low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive")
        wheel, build = (statistics.median(seconds[name] for seconds in jobs) for jobs in (of_wheel, of_build))
        rows.append([name, f"{1e6 * wheel:.0f} µs", f"{1e6 * build:.0f} µs", f"{ratio:.2f}", f"{low:.2f}-{high:.2f}"])
    text = f"{arguments.pairs} jobs of each install. ratio: wheel over build."
    table = table_lines(("operation", "wheel", "build", "ratio", "quartiles"), rows)
    report = page("Small operations: a wheel and a build", conditions, text, *table)
    print(report)
    if arguments.out:
        arguments.out.write_text(report + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
