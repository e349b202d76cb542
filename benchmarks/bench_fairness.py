"""What a small operation waits for beside another group's bulk: `python benchmarks/bench_fairness.py`, two minutes.

Two sites of one rank on an emulated link. A barrier and an all-reduce of 8 floats in a second group, each timed alone,
then one after the other while the first group all-reduces a large exact tensor. Times are also given in round trips,
and the large all-reduce over its floor. Options change the link and the run. Exit status 1: a run failed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from geocomm.core.units import parse_duration, parse_rate
from geocomm.lab.bench.wan_bench import floor_s
from geocomm.lab.emulator.emulated_keys import site_environment, site_keys
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanRun
from geocomm.lab.emulator.local_job import bare_environment

MIB = 1 << 20
ALONE = 10
PAUSE_S = 0.02
HEAD_START_S = 0.3
"""Of the bulk."""
OPERATIONS = ("barrier", "all_reduce of 8 floats")
BULK_ALONE, BULK_BESIDE = "bulk alone", "bulk beside"


def work(out: Path, size_bytes: int, repeats: int) -> None:
    """One rank: measures, and leaves its numbers in `out`."""
    import torch
    import torch.distributed as dist

    import geocomm

    dist.init_process_group(
        "geocomm",
        init_method=f"file://{out}.store",
        rank=int(os.environ["NODE_RANK"]),
        world_size=int(os.environ["NNODES"]),
    )
    second = dist.new_group()
    bulk = torch.ones(size_bytes // 4)
    small = torch.ones(8)

    def timed(operation: str) -> tuple[float, float]:
        start = time.monotonic()
        dist.barrier(group=second) if operation == "barrier" else dist.all_reduce(small, group=second)
        return start, time.monotonic()

    dist.all_reduce(bulk)  # streams are open, windows have grown
    numbers: dict[str, list[tuple[float, float]]] = {BULK_ALONE: [], BULK_BESIDE: []}
    for operation in OPERATIONS:
        numbers[f"{operation}, alone"] = [timed(operation) for _ in range(ALONE)]
        numbers[f"{operation}, beside"] = []
    going_on = torch.ones(1)
    for beside in (False, True) * repeats:
        dist.barrier(group=second)
        start = time.monotonic()
        pending = dist.all_reduce(bulk, async_op=True)
        time.sleep(HEAD_START_S)
        going_on.fill_(float(beside))
        for turn in itertools.count():
            if going_on.item() == 0:
                break
            operation = OPERATIONS[turn % len(OPERATIONS)]
            taken = timed(operation)
            going_on.fill_(0.0 if pending.is_completed() else 1.0)
            dist.all_reduce(going_on, op=dist.ReduceOp.MIN, group=second)  # both ranks go on, or none
            if going_on.item() == 1:
                numbers[f"{operation}, beside"].append(taken)
            time.sleep(PAUSE_S)
        pending.wait()
        numbers[BULK_BESIDE if beside else BULK_ALONE].append((start, time.monotonic()))
    peer = geocomm.stats()["peers"][0]
    how = f"{peer['streams']} streams, {peer['congestion_control']}"
    out.with_suffix(f".{dist.get_rank()}").write_text(json.dumps({"times_s": numbers, "how": how}))
    dist.destroy_process_group()


def measure(
    link: EmulatedLink, size_bytes: int, repeats: int, streams: int, *, secure: bool
) -> tuple[str, dict[str, list[float]]]:
    """What the link was, and seconds of every operation."""
    names = ["site0", "site1"]
    with tempfile.TemporaryDirectory() as scratch, site_keys(names, None, secure) as keys:
        out = Path(scratch) / "numbers"
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(out), "--repeats", str(repeats)]
        command += ["--size-bytes", str(size_bytes)]
        environment = bare_environment() | {"GEOCOMM_CODEC": "none"}
        if streams:
            environment["GEOCOMM_STREAMS"] = str(streams)
        with WanRun(
            EmulatedWan.uniform(2, link), command, environment=site_environment(environment, keys), keys=keys
        ) as run:
            if run.wait(600) != 0:
                raise SystemExit("a rank failed")
        ranks = [json.loads(out.with_suffix(f".{rank}").read_text()) for rank in range(2)]
    first, second = (rank["times_s"] for rank in ranks)
    # As both ranks see it: from the later beginning to the later end.
    times = {
        name: [max(a[1], b[1]) - max(a[0], b[0]) for a, b in zip(first[name], second[name], strict=True)]
        for name in first
    }
    return ranks[0]["how"], times


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--rtt", default="100ms")
    parser.add_argument("--size-mib", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--streams", type=int, default=0, help="as GEOCOMM_STREAMS")
    parser.add_argument("--secure", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--size-bytes", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.size_bytes, args.repeats)
        return
    rtt_s = parse_duration(args.rtt)
    link = EmulatedLink(rate_bps=parse_rate(args.rate), delay_s=rtt_s / 2)
    size_bytes = args.size_mib * MIB
    how, times = measure(link, size_bytes, args.repeats, args.streams, secure=args.secure)
    if args.json:
        args.json.write_text(json.dumps(times, indent=1) + "\n")
    floor = floor_s(size_bytes, 2, link)
    print(f"{args.size_mib} MiB, {args.rate}, {args.rtt}{', TLS' if args.secure else ''}: {how}")
    print("| operation | times | median | most | median |\n|---|---:|---:|---:|---:|")
    for name, values in times.items():
        if not values:
            print(f"| {name} | 0 | none ended before the bulk did | | |")
            continue
        unit, of = ("x floor", floor) if name.startswith("bulk") else ("round trips", rtt_s)
        middle = statistics.median(values)
        print(f"| {name} | {len(values)} | {middle:.3f} s | {max(values):.3f} s | {middle / of:.2f} {unit} |")


if __name__ == "__main__":
    main()
