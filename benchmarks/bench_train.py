"""Compressed gradients in training: `python benchmarks/bench_train.py`, about an hour on two cores.

(1) quality: a small DeepSeek model trained on loopback between two sites, with the same data and seeds by every method;
its loss on held-out text. (2) step time: a larger one over an emulated line, on Gloo and on geocomm. (3) their product:
steps to the same held-out loss times seconds per step. The small model stands for the larger one in (3), since training
that to the end over a slow line would take days.

Every run is kept as it ends, so that an interrupted benchmark goes on where it was; a run counts as long as its plan is
the same (--fresh: measure again). Those of (1), which say the same on any machine, are kept with the results, in
train-runs; those of (2) under build/bench-train. Results: benchmarks/results/train.md, .json and .png.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from bench_train_report import Quality, Report, StepTime, write_report
from bench_train_worker import PACED, Plan
from bench_wan import PACING

from geocomm.lab.bench.bench_report import Conditions
from geocomm.lab.emulator.emulated_keys import site_environment
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanRun
from geocomm.lab.emulator.local_job import bare_environment, run_local_ranks

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "benchmarks" / "bench_train_worker.py"
LINK = EmulatedLink(rate_bps=2e8, delay_s=0.05, loss=0.001)
SEEDS = (1, 2, 3)
EXACT = "exact"
LOSSLESS = "lossless"
BIT1 = "bit1"
TOPK = "topk:k=41"  # 1 % of each 4096
QUALITY_METHODS = (EXACT, "int8", "int4", "balanced", "small", BIT1, TOPK, "powersgd")
TIMED_METHODS = ("gloo", "gloo8", EXACT, EXACT + PACED, LOSSLESS, LOSSLESS + PACED, *QUALITY_METHODS[1:-1])
QUALITY = Plan(
    method="",
    seed=0,
    steps=800,
    warmup_steps=10,
    untimed_steps=800,
    evaluate_every=25,
    overrides={
        "hidden_size": 224,
        "intermediate_size": 608,
        "moe_intermediate_size": 208,
        "num_hidden_layers": 3,
        "q_lora_rank": 64,
        "kv_lora_rank": 48,
    },
    sequence_length=64,
    micro_batch=4,
    learning_rate=2e-3,
    held_out=128,
    bucket_mib=4,
)
TIMED = replace(
    QUALITY,
    steps=36,
    warmup_steps=2,
    untimed_steps=6,
    evaluate_every=0,
    overrides={
        "hidden_size": 512,
        "intermediate_size": 1408,
        "moe_intermediate_size": 512,
        "num_hidden_layers": 6,
        "q_lora_rank": 128,
    },
    micro_batch=1,
    bucket_mib=25,
)
ONE_BUCKET_MIB = 1024  # PowerSGD's
BUCKETED_METHOD, BUCKETS_MIB = "balanced", (2.0, 6.0, 12.0, 50.0, 100.0)


class RunError(RuntimeError):
    """A run failed; the message has the end of its output."""


class Runs:
    """Runs plans, and remembers what came of them: on loopback in one folder, over a line in another."""

    def __init__(self, loopback: Path, line: Path, *, fresh: bool) -> None:
        for folder in (loopback, line):
            folder.mkdir(parents=True, exist_ok=True)
        self._loopback, self._line, self._fresh = loopback, line, fresh

    def result(self, plan: Plan, link: EmulatedLink | None) -> dict[str, Any]:
        """Of this plan between two sites, over `link` or loopback."""
        text = json.dumps([asdict(plan), None if link is None else asdict(link)], sort_keys=True)
        name = f"{plan.method.partition(':')[0]}-{plan.seed}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
        path = (self._loopback if link is None else self._line) / name
        if self._fresh or not path.exists():
            print(f"bench_train: {plan.method}, seed {plan.seed}, {'loopback' if link is None else 'WAN'}", flush=True)
            with tempfile.TemporaryDirectory(prefix="geocomm-train-") as scratch, tempfile.TemporaryFile("w+") as log:
                plan_path = Path(scratch) / "plan.json"
                plan_path.write_text(json.dumps(asdict(plan)), encoding="utf-8")
                command = [sys.executable, str(WORKER), str(plan_path), str(path)]
                status = _on_loopback(command, log) if link is None else _over(link, plan, command, log)
                if status != 0:
                    log.seek(0)
                    raise RunError(f"{plan} ended with status {status}:\n{''.join(log.readlines()[-25:])}")
        return json.loads(path.read_text(encoding="utf-8"))


def _on_loopback(command: Sequence[str], log: IO[str]) -> int:
    statuses = run_local_ranks(command, ["site0", "site1"], log)
    return next((status for status in statuses if status), 0)


def _over(link: EmulatedLink, plan: Plan, command: Sequence[str], log: IO[str]) -> int:
    topology = EmulatedWan.uniform(2, link)
    # Plaintext, as Gloo's is.
    environment = site_environment(bare_environment(), None)
    if plan.method.endswith(PACED):
        environment["GEOCOMM_MAX_PACING_BPS"] = str(round(PACING * link.rate_bps))
    with WanRun(topology, command, environment=environment, stdout=log, stderr=log, master_port=29521) as run:
        return run.wait()


def _bucket(plan: Plan) -> Plan:
    return replace(plan, bucket_mib=ONE_BUCKET_MIB) if plan.method == "powersgd" else plan


def main() -> int:
    """Run what is missing, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="of the quality runs (default 3)")
    parser.add_argument("--steps", type=int, default=QUALITY.steps, help="of the quality runs (default 800)")
    parser.add_argument("--methods", help="by commas (default: all)")
    parser.add_argument("--part", choices=("quality", "times"), help="only (1), or only (2)")
    parser.add_argument(
        "--buckets",
        default=",".join(f"{mib:g}" for mib in BUCKETS_MIB),
        help=f"other sizes of DDP's buckets, in MiB, to time {BUCKETED_METHOD} with (by commas; empty: none)",
    )
    parser.add_argument("--fresh", action="store_true", help="run again what has been run")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    arguments = parser.parse_args()
    wanted = arguments.methods.split(",") if arguments.methods else [*QUALITY_METHODS, *TIMED_METHODS]
    runs = Runs(arguments.out / "train-runs", ROOT / "build" / "bench-train", fresh=arguments.fresh)
    buckets_mib = [float(mib) for mib in arguments.buckets.split(",") if mib]
    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    quality_plan = replace(QUALITY, steps=arguments.steps, untimed_steps=arguments.steps)
    try:
        times = [
            StepTime.of(method, runs.result(_bucket(replace(TIMED, method=method)), LINK))
            for method in TIMED_METHODS
            if method in wanted and arguments.part != "quality"
        ]
        by_bucket = {
            bucket_mib: StepTime.of(
                BUCKETED_METHOD, runs.result(replace(TIMED, method=BUCKETED_METHOD, bucket_mib=bucket_mib), LINK)
            )
            for bucket_mib in sorted((TIMED.bucket_mib, *buckets_mib))
            if BUCKETED_METHOD in wanted and buckets_mib and arguments.part != "quality"
        }
        # By seed first: what an interrupted benchmark has is then comparable.
        curves: dict[str, list[dict[str, Any]]] = {}
        for seed in SEEDS[: arguments.seeds]:
            for method in QUALITY_METHODS:
                if method in wanted and arguments.part != "times":
                    plan = _bucket(replace(quality_plan, method=method, seed=seed))
                    curves.setdefault(method, []).append(runs.result(plan, None))
    except RunError as error:
        print(f"bench_train: {error}", file=sys.stderr)
        return 1
    qualities = [Quality.of(method, results) for method, results in curves.items()]
    report = Report(conditions, LINK, arguments.steps, qualities, times, by_bucket)
    print(f"written: {write_report(report, arguments.out / 'train.md')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
