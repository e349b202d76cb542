"""One rank of the cost benchmark: `python benchmarks/bench_cost_worker.py PLAN OUT`.

`bench_cost` starts it. PLAN is a JSON file (`Plan`); into the folder OUT goes rank-N.jsonl, a line per case. The
default process group is geocomm's, without compression, beside it one of Gloo. Samples of the two alternate; a sample
is as many operations as fill some milliseconds, one after the other. Clocks are CLOCK_MONOTONIC, which processes share.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

import geocomm

_SAMPLE_BYTES = 4 << 20
_MOST_IN_SAMPLE = 128


@dataclass(frozen=True)
class Plan:
    """What to measure. Every rank gets the same."""

    collectives: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    """Of the larger of input and output on a rank."""
    samples: int
    idle_s: float
    """How long the rank sits idle, to see what that costs."""


@dataclass(frozen=True)
class Operation:
    """One collective, as a function of the process group."""

    run: Callable[[Any], None]
    result: torch.Tensor
    changed: tuple[torch.Tensor, ...] = ()
    """Inputs that it overwrites, also with what is nobody's result: Gloo's reduce does on all ranks."""


def operation(name: str, size_bytes: int, rank: int, world_size: int) -> Operation:
    """The collective of that name with `size_bytes`."""
    elements = max(world_size, size_bytes // 4 // world_size * world_size)
    generator = torch.Generator().manual_seed(rank + 1)
    whole = torch.randn(elements, generator=generator)
    part = torch.randn(elements // world_size, generator=generator)
    if name == "all_reduce":
        # Sums of sums end at infinity, which takes as long to add.
        return Operation(lambda group: dist.all_reduce(whole, group=group), whole, (whole,))
    if name == "broadcast":
        return Operation(lambda group: dist.broadcast(whole, 0, group=group), whole, (whole,))
    if name == "all_gather":
        return Operation(lambda group: dist.all_gather_into_tensor(whole, part, group=group), whole)
    if name == "reduce_scatter":
        return Operation(lambda group: dist.reduce_scatter_tensor(part, whole, group=group), part)
    if name == "all_to_all":
        received = torch.empty_like(whole)
        return Operation(lambda group: dist.all_to_all_single(received, whole, group=group), received)
    if name == "gather":
        parts = list(whole.chunk(world_size)) if rank == 0 else None
        return Operation(lambda group: dist.gather(part, parts, 0, group=group), whole)
    if name == "scatter":
        sources = list(whole.chunk(world_size)) if rank == 0 else None
        return Operation(lambda group: dist.scatter(part, sources, 0, group=group), part)
    if name == "reduce":
        result = whole if rank == 0 else torch.zeros(1)
        return Operation(lambda group: dist.reduce(whole, 0, group=group), result, (whole,))
    if name == "send_recv":
        # There and back: a one-way send ends before its message has arrived.
        def ping_pong(group: Any) -> None:
            for source in range(2):
                if rank == source:
                    dist.send(whole, 1 - source, group=group)
                elif rank == 1 - source:
                    dist.recv(whole, source, group=group)

        return Operation(ping_pong, whole, (whole,))
    if name == "barrier":
        return Operation(lambda group: dist.barrier(group=group), torch.zeros(1))
    raise ValueError(f"no collective {name!r}")


class Worker:
    """Runs a plan; collective over all ranks."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._bare_bytes = psutil.Process().memory_info().rss
        dist.init_process_group("geocomm")
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self._gloo = dist.new_group(backend="gloo")
        self._geocomm = dist.group.WORLD

    def run(self) -> list[dict[str, Any]]:
        """A line per case, the idle one first."""
        lines = [self._idle()]
        for name in self._plan.collectives:
            for size in (4,) if name == "barrier" else self._plan.sizes_bytes:
                lines.append(self._measure(name, size))
        return lines

    def _idle(self) -> dict[str, Any]:
        """What this process does and has while its process groups have been used and do nothing."""
        dist.all_reduce(torch.ones(1 << 20))
        dist.barrier(group=self._gloo)
        before = time.process_time()
        time.sleep(self._plan.idle_s)
        cpu_s = time.process_time() - before
        held = psutil.Process().memory_info().rss - self._bare_bytes
        return {"case": "idle", "seconds": self._plan.idle_s, "cpu_s": cpu_s, "held_bytes": held}

    def _measure(self, name: str, size: int) -> dict[str, Any]:
        measured = operation(name, size, self._rank, self._world_size)
        before = [tensor.clone() for tensor in measured.changed]
        measured.run(self._gloo)
        expected = measured.result.clone()
        for tensor, old in zip(measured.changed, before, strict=True):
            tensor.copy_(old)
        dist.barrier(group=self._gloo)
        measured.run(self._geocomm)
        equal = torch.equal(measured.result, expected)
        count = max(1, min(_MOST_IN_SAMPLE, _SAMPLE_BYTES // size))
        times: dict[str, list[tuple[float, float]]] = {"gloo": [], "geocomm": []}
        groups = {"gloo": self._gloo, "geocomm": self._geocomm}
        for sample in range(self._plan.samples + 1):
            for which in sorted(groups, reverse=bool(sample % 2)):
                dist.barrier(group=self._gloo)
                start = time.monotonic()
                for _ in range(count):
                    measured.run(groups[which])
                end = time.monotonic()
                if sample > 0:
                    times[which].append((start, end))
        line = {"case": name, "size_bytes": size, "in_sample": count, "equal": equal, "times": times}
        return line | {"memory": geocomm.stats()["memory"]}


def main(plan_path: str, out_dir: str) -> int:
    """A rank, as RANK and WORLD_SIZE say."""
    document = json.loads(Path(plan_path).read_text(encoding="utf-8"))
    plan = Plan(**document | {key: tuple(document[key]) for key in ("collectives", "sizes_bytes")})
    torch.set_num_threads(1)
    lines = Worker(plan).run()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (Path(out_dir) / f"rank-{os.environ['RANK']}.jsonl").write_text(text, encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
