"""One rank of the all-reduce benchmark: `python -m geocomm.lab.bench.wan_bench_worker PLAN OUT`.

`wan_bench` starts it, at every site of an emulated WAN or twice on one machine. PLAN is a JSON file (`WanBenchPlan`).
Into folder OUT goes one line of JSON per operation (rank-N.jsonl). The default process group is Gloo: it holds the
barriers, and is itself the case "gloo". The case "gloo8" is the most that Gloo can be brought to: a group that names
its interface eight times, and eight slices at once. Every other case has a geocomm group with a codec of its own. All
clocks are CLOCK_MONOTONIC, which processes of one machine share.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist

from geocomm.core.options import Options, from_environment
from geocomm.core.place import is_rank, node_and_nodes, rank_and_world_size, rank_variables
from geocomm.lab.bench.wan_bench import GLOO, GLOO_SLICED, WanBenchPlan
from geocomm.lab.emulator.emulated_wan import CONTROL_VARIABLE, WanControl, WanReport

SLICES = 8
ELEMENT_BYTES = 4
_CHUNK_ELEMS = 1 << 22


def rank_input(plan: WanBenchPlan, rank: int, size_bytes: int) -> torch.Tensor:
    """The fp32 tensor that `rank` brings: normal, and known to every rank."""
    generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + size_bytes * 257 + rank)
    return torch.randn(size_bytes // ELEMENT_BYTES, generator=generator)


@dataclass(frozen=True)
class Reference:
    """What the sum must be."""

    total: torch.Tensor
    """fp32, added in rank order."""
    magnitude: torch.Tensor | None
    """Sum of absolute values, where orders of summation may differ: more than two ranks."""

    @classmethod
    def of(cls, plan: WanBenchPlan, world_size: int, size_bytes: int) -> Reference:
        """Computed from the seeds alone."""
        total = torch.zeros(size_bytes // ELEMENT_BYTES)
        magnitude = torch.zeros_like(total) if world_size > 2 else None
        for rank in range(world_size):
            part = rank_input(plan, rank, size_bytes)
            total += part
            if magnitude is not None:
                magnitude += part.abs()
        return cls(total, magnitude)

    @property
    def held_bytes(self) -> int:
        """The bytes of its tensors."""
        return self.total.nbytes * (1 if self.magnitude is None else 2)

    def is_exact(self, result: torch.Tensor, world_size: int) -> bool:
        """Bit for bit with two ranks; else within what the order of fp32 additions can change."""
        if self.magnitude is None:
            return torch.equal(result, self.total)
        slack = (2 * world_size * torch.finfo(torch.float32).eps) * self.magnitude
        return bool(((result - self.total).abs() <= slack).all())

    def nmse(self, result: torch.Tensor) -> float:
        """Squared error over squared norm, in fp64."""
        error = norm = 0.0
        for got, want in zip(result.split(_CHUNK_ELEMS), self.total.split(_CHUNK_ELEMS), strict=True):
            wanted = want.double()
            error += float((got.double() - wanted).square().sum())
            norm += float(wanted.square().sum())
        return error / norm


class Worker:
    """Runs a plan; collective over all ranks."""

    def __init__(self, plan: WanBenchPlan, out: TextIO) -> None:
        """Makes the process groups."""
        self._plan = plan
        self._out = out
        self._bare_bytes = _memory("VmRSS")
        dist.init_process_group("gloo", init_method=_meeting())
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self._groups = {case: _group(case) for case in plan.cases}
        path = os.environ.get(CONTROL_VARIABLE)
        self._control = WanControl(path) if path and self._rank == 0 else None

    def run(self) -> None:
        """Everything."""
        for size, cases in self._plan.rounds():
            own = rank_input(self._plan, self._rank, size)
            reference = Reference.of(self._plan, self._world_size, size)
            tensor = torch.empty_like(own)
            valid = dict.fromkeys(cases, 0)
            # A few voided operations are made up for; a machine that is busy all the time is not waited for.
            for attempt in range(self._plan.warmup + 3 * self._plan.repeats):
                turn = attempt % len(cases)
                for case in cases[turn:] + cases[:turn]:
                    warmup = attempt < self._plan.warmup
                    tensor.copy_(own)
                    on_time = self._operate(case, size, tensor, reference, warmup)
                    valid[case] += on_time and not warmup
                if min(valid.values()) >= self._plan.repeats:
                    break

    def _operate(self, case: str, size: int, tensor: torch.Tensor, reference: Reference, warmup: bool) -> bool:
        """One operation; whether no packet of it was late, which rank 0 decides for all."""
        group = self._groups[case]
        before = self._links()  # ahead of the barrier: after it the others may begin at any time
        dist.barrier()
        time.sleep(self._plan.pause_s)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM begins anew
        start = time.monotonic()
        if case == GLOO_SLICED:
            works: list[Any] = [dist.all_reduce(part, group=group, async_op=True) for part in tensor.chunk(SLICES)]
            for work in works:
                work.wait()
        else:
            dist.all_reduce(tensor, group=group)
        end = time.monotonic()
        peak_bytes, descriptors = _memory("VmHWM"), len(os.listdir("/proc/self/fd"))
        dist.barrier()
        after = self._links()
        verdict = torch.zeros(1)
        counters: dict[str, Any] = {}
        if before is not None and after is not None:
            counters = {
                "wire_bytes": sum(link.bytes for link in after.links) - sum(link.bytes for link in before.links),
                "late_packets": after.late_packets - before.late_packets,
                "max_lateness_s": after.max_lateness_s,
            }
            verdict[0] = counters["late_packets"]
        dist.broadcast(verdict, 0)
        line = {
            "case": case,
            "size_bytes": size,
            "warmup": warmup,
            "on_time": bool(verdict[0] == 0),
            "start": start,
            "end": end,
            "exact": reference.is_exact(tensor, self._world_size),
            "nmse": reference.nmse(tensor),
            "beside_bytes": peak_bytes - self._bare_bytes - reference.held_bytes - 2 * size,
            "descriptors": descriptors,
            "digest": hashlib.blake2b(tensor.numpy().data, digest_size=16).hexdigest(),
            **counters,
        }
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()
        return bool(line["on_time"])

    def _links(self) -> WanReport | None:
        return None if self._control is None else self._control.stats()


def _meeting() -> str:
    """Where the ranks meet: with keys at a hub, since torch's own store is plaintext."""
    if from_environment("keys") is None:
        return "env://"
    return f"geocomm://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"


def _group(case: str) -> dist.ProcessGroup | None:
    """None: the default group."""
    if case == GLOO:
        return None
    if case == GLOO_SLICED:
        return _sliced_gloo()
    security = "required" if from_environment("keys") else "insecure"  # the environment's is that of Gloo
    return _made(dist.new_group(backend="geocomm", pg_options=Options(codec=case, security=security)))


def _sliced_gloo() -> dist.ProcessGroup:
    """A Gloo group with a connection per slice, which Gloo makes if an interface is named several times."""
    interface = os.environ["GLOO_SOCKET_IFNAME"]
    os.environ["GLOO_SOCKET_IFNAME"] = ",".join([interface] * SLICES)
    try:
        return _made(dist.new_group(backend="gloo"))
    finally:
        os.environ["GLOO_SOCKET_IFNAME"] = interface


def _made(group: object) -> dist.ProcessGroup:
    if not isinstance(group, dist.ProcessGroup):  # torch's mark of a rank that is no member
        raise RuntimeError("this rank is no member of a group that all ranks make")
    return group


def _memory(name: str) -> int:
    """Bytes of this process that /proc/self/status calls `name`: VmRSS, VmHWM."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"/proc/self/status has no line {name}")
    return int(found[1]) * 1024


def _site(plan: WanBenchPlan, arguments: list[str]) -> int:
    """Start the ranks of this site; the first exit status that is not 0."""
    site, sites = node_and_nodes()
    command = [sys.executable, "-m", "geocomm.lab.bench.wan_bench_worker", *arguments]
    ranks = []
    for local in range(plan.ranks_per_site):
        rank = site * plan.ranks_per_site + local
        own = rank_variables(rank, sites * plan.ranks_per_site, local, plan.ranks_per_site)
        ranks.append(subprocess.Popen(command, env=os.environ | own))
    return next((status for rank in ranks if (status := rank.wait())), 0)


def main(plan_path: str, out_dir: str) -> int:
    """A rank, as RANK and WORLD_SIZE say; without RANK, the ranks of the site NODE_RANK of NNODES."""
    plan = WanBenchPlan.from_json(Path(plan_path).read_text(encoding="utf-8"))
    if not is_rank():
        return _site(plan, [plan_path, out_dir])
    torch.set_num_threads(1)
    with (Path(out_dir) / f"rank-{rank_and_world_size()[0]}.jsonl").open("w", encoding="utf-8") as out:
        Worker(plan, out).run()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
