"""What the evidence of `geocomm why` costs a training step: `python benchmarks/bench_evidence.py`, some three minutes.

Two sites on loopback train with DDP, int8 between them. First: the ranks have equal weights, and the operation log has
every all-reduce of a step once. Then: what a record of the logs costs alone (a C++ program, which needs a compiler),
how many a step makes, and what one reading of op_log(), round_log() and stats() takes, as telemetry does each second.
Last: steps with and without such a reader, in pairs that take turns. Exit status 1: a check failed, or the share is
above its target.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import geocomm
from geocomm.lab.bench.bench_report import Conditions
from geocomm.lab.emulator.local_job import run_local_ranks
from geocomm.sync.local_steps.outer.round_records import RoundLog

ROOT = Path(__file__).resolve().parent.parent
PAIRS, STEPS = 61, 8
"""Pairs of samples, and steps of a sample."""
WIDTH, LAYERS, BATCH = 512, 8, 64
READ_EVERY_S = 1.0
TARGET_SHARE = 0.005
CHUNK_BYTES = 1 << 20


class EvidenceError(RuntimeError):
    """A run failed, or a check did."""


class Reader:
    """Reads all evidence, as telemetry does."""

    def __init__(self) -> None:
        self._operation = self._round = 0

    def read(self) -> float:
        """The seconds that it took."""
        begun = time.perf_counter()
        operations, rounds = geocomm.op_log(self._operation), geocomm.round_log(self._round)
        geocomm.stats()
        took = time.perf_counter() - begun
        self._operation = max((row["number"] for row in operations), default=self._operation)
        self._round = max((row["number"] for row in rounds), default=self._round)
        return took

    @contextmanager
    def reading(self) -> Generator[None]:
        """Within, another thread reads at once, and then every READ_EVERY_S."""
        ends = threading.Event()

        def read() -> None:
            self.read()
            while not ends.wait(READ_EVERY_S):
                self.read()

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()


@dataclass
class Steps:
    """Training on random data."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: torch.Tensor

    @classmethod
    def made(cls) -> Steps:
        torch.manual_seed(0)
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        return cls(model, optimizer, torch.randn(BATCH, WIDTH) * (1 + dist.get_rank()))

    def take(self, count: int) -> float:
        """Seconds a step."""
        begun = time.perf_counter()
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(self.inputs).square().mean().backward()
            self.optimizer.step()
        return (time.perf_counter() - begun) / count


def work(out: str) -> None:
    """One rank: writes what it has measured."""
    torch.set_num_threads(1)
    dist.init_process_group("geocomm")
    steps, reader = Steps.made(), Reader()
    steps.take(3)  # DDP makes its buckets anew after the first
    before = geocomm.op_log()[-1]["number"]
    steps.take(1)
    made = geocomm.op_log(before)
    weights = torch.cat([weight.detach().flatten() for weight in steps.model.parameters()])
    of_all = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(of_all, weights)
    pairs: list[tuple[float, float]] = []
    for pair in range(PAIRS):
        times: dict[bool, float] = {}
        for reads in sorted((False, True), reverse=bool(pair % 2)):
            dist.barrier()
            if reads:
                with reader.reading():
                    times[reads] = steps.take(STEPS)
            else:
                times[reads] = steps.take(STEPS)
        pairs.append((times[True], times[False]))
    readings: list[float] = []
    for _ in range(PAIRS):
        steps.take(STEPS)
        readings.append(reader.read())
    numbers = [row["number"] - before for row in made]
    result = {
        "equal": all(torch.equal(weights, other) for other in of_all),
        "gradients": sum(row["elements"] for row in made) == weights.numel() and numbers == [*range(1, len(made) + 1)],
        "operations": len(made),
        "chunks": sum(-(-row["elements"] * 4 // CHUNK_BYTES) for row in made),
        "step_s": statistics.median(plain for _, plain in pairs),
        "ratios": [read / plain for read, plain in pairs],
        "read_s": statistics.median(readings),
    }
    Path(out, f"{dist.get_rank()}.json").write_text(json.dumps(result), encoding="utf-8")
    dist.destroy_process_group()


def native_costs(folder: str) -> dict[str, float]:
    """In ns, of what `op_log_cost.cc` names."""
    program = str(Path(folder, "op_log_cost"))
    sources = [ROOT / "benchmarks/op_log_cost.cc", ROOT / "csrc/collective/run/op_log.cc", ROOT / "csrc/core/fork.cc"]
    subprocess.run(["c++", "-std=c++20", "-O2", f"-I{ROOT / 'csrc'}", *map(str, sources), "-o", program], check=True)
    return json.loads(subprocess.run([program], check=True, capture_output=True, text=True).stdout)


def round_cost_s() -> float:
    """Of the record of a round with one other site."""
    log, samples, count = RoundLog(), list[float](), 20
    for _ in range(500):
        begun = time.perf_counter()
        for number in range(count):
            record = log.open(0, number, elastic=False)
            record.due()
            record.begun(number, 1)
            record.awaits(["b"])
            with record.coding():
                pass
            record.offered(100)
            record.announced("b", 100, number, 1)
            record.listed(["a", "b"])
            record.arrived("b")
            with record.coding():
                pass
            record.averaged()
            record.applied()
        samples.append((time.perf_counter() - begun) / count)
    return statistics.median(samples)


def main() -> int:
    """Measure, and print."""
    conditions = Conditions.here("python benchmarks/bench_evidence.py")
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("w+", encoding="utf-8") as log:
        costs = native_costs(folder)
        command = ["env", "GEOCOMM_CODEC=int8", sys.executable, __file__, folder]
        if any(run_local_ranks(command, ("a", "b"), log)):
            log.seek(0)
            raise EvidenceError(f"the run failed:\n{''.join(log.readlines()[-25:])}")
        ranks: list[dict[str, Any]] = [json.loads(Path(folder, f"{rank}.json").read_text("utf-8")) for rank in (0, 1)]
    if not all(rank["equal"] and rank["gradients"] for rank in ranks):
        raise EvidenceError(f"weights differ, or the log has not each gradient once: {ranks}")
    rank = ranks[0]
    records_s = 1e-9 * (
        rank["operations"] * costs["operation"] + (rank["chunks"] - rank["operations"]) * costs["chunk"]
    )
    share = records_s / rank["step_s"] + rank["read_s"] / READ_EVERY_S
    quartiles = statistics.quantiles([ratio for one in ranks for ratio in one["ratios"]])
    print(conditions)
    print(f"alone: {costs} ns; a round {round_cost_s() * 1e6:.1f} us")
    print(f"a step: {rank['step_s'] * 1e3:.1f} ms, {rank['operations']} operations, {rank['chunks']} chunks")
    print(f"its records: {records_s * 1e6:.1f} us; one reading: {rank['read_s'] * 1e3:.2f} ms")
    print(f"share of a step: {share:.3%} (target {TARGET_SHARE:.1%})")
    print(f"with a reader over without, {PAIRS} pairs, quartiles: {', '.join(f'{one:.3f}' for one in quartiles)}")
    return int(share > TARGET_SHARE)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1])
    else:
        sys.exit(main())
