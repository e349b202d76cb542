"""How long per-step training stands still when a site is killed: `python benchmarks/bench_reconfigure.py`, two minutes.

Three processes on loopback, a site each, sum a tensor step by step and check every sum. One is killed with SIGKILL in
the middle of a step. The others hear of it, exchange handles and reconfigure; then the site comes back. Times are from
the kill, and from the moment at which the new process has joined, to the end of the next step that is right, on the
last of the survivors. geocomm, with TLS between the sites, and Gloo's own reconfigure take turns. Needs torch 2.14.
Results: benchmarks/results/reconfigure.md and .json. Exit status 1: a run failed or a sum was wrong.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shlex
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from geocomm.lab.bench.bench_report import Conditions, load_at_end, write_pair

ROOT = Path(__file__).resolve().parent.parent
SITES = "abc"
ELEMENTS = 1 << 20
STEPS_BEFORE = 10
TIMEOUT = timedelta(seconds=60)


@dataclass
class Sample:
    """Of one kill and one return, in seconds."""

    backend: str
    noticed: float
    """From the kill until the last survivor has the error."""
    shrunk: float
    """From the kill to the end of the survivors' next step."""
    grown: float
    """From the new process's handle to the end of the next step of all three."""


def _rank(pipe: Connection, backend: str, number: int, store_port: int, variables: dict[str, str]) -> None:
    """Does what comes through the pipe: steps, until one fails; a reconfigure with the handles of all."""
    os.environ.update(variables)
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    dist: Any = torch.distributed  # torch 2.13, with which types are checked, has not all of it
    store = dist.HashStore()
    if backend == "gloo":  # it needs a store that all share, and ranks that differ
        store = dist.TCPStore("127.0.0.1", store_port, is_master=False, wait_for_workers=False)
    dist.init_process_group(backend, store=store, rank=number, world_size=4, timeout=TIMEOUT, enable_reconfigure=True)
    pipe.send(dist._get_reconfigure_handle())
    while True:
        what, *arguments = pipe.recv()
        if what == "reconfigure":
            uuid, handles = arguments
            dist._reconfigure(uuid, handles, timeout=TIMEOUT).wait()
            pipe.send(_step(0))
        elif what == "steps":
            step = 0
            try:
                while step < arguments[0]:
                    _step(step)
                    step += 1
                pipe.send(None)
            except Exception:
                pipe.send((time.monotonic(), dist._get_reconfigure_handle()))
        else:
            pipe.send(dist._get_reconfigure_handle())


def _step(step: int) -> float:
    """When a step that was right had ended."""
    import torch
    from torch.distributed import get_world_size

    from geocomm.core.typed_torch import all_reduce

    tensor = torch.full((ELEMENTS,), float(step % 7 + 1))
    all_reduce(tensor)
    if not bool((tensor == (step % 7 + 1) * get_world_size()).all()):
        raise SystemExit("the sum is wrong")
    return time.monotonic()


class Job:
    """The processes of one backend, and whoever forms the groups."""

    def __init__(self, backend: str, keys: Path) -> None:
        import torch.distributed as dist

        self._backend, self._keys = backend, keys
        self._context = multiprocessing.get_context("forkserver")
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._uuid = 0
        self.processes: list[Any] = []
        self.pipes: list[Connection] = []
        self.handles: list[str] = []

    def start(self, site: str) -> None:
        """One more process, until it has a handle."""
        ours, theirs = self._context.Pipe()
        variables = {"GEOCOMM_SITE": site, "GEOCOMM_KEYS": str(self._keys / site), "GEOCOMM_THREADS": "1"}
        arguments = (theirs, self._backend, len(self.processes), self._store.port, variables)
        process = self._context.Process(target=_rank, args=arguments, daemon=True)
        process.start()
        theirs.close()
        self.processes.append(process)
        self.pipes.append(ours)
        self.handles.append(ours.recv())

    def reconfigure(self, members: list[int]) -> float:
        """When the last of them had ended its next step."""
        self._uuid += 1
        for member in members:
            self.pipes[member].send(("reconfigure", self._uuid, [self.handles[one] for one in members]))
        return max(self.pipes[member].recv() for member in members)

    def run(self) -> Sample:
        """Kill one of three, go on with two, and with three again."""
        for site in SITES:
            self.start(site)
        self.reconfigure([0, 1, 2])
        for member in range(3):
            self.pipes[member].send(("steps", STEPS_BEFORE))
        if any(self.pipes[member].recv() is not None for member in range(3)):
            raise SystemExit("a step failed before anything was killed")
        for member in range(3):
            self.pipes[member].send(("handle",))
            self.handles[member] = self.pipes[member].recv()
        for member in range(3):
            self.pipes[member].send(("steps", sys.maxsize))
        time.sleep(0.5)
        killed = time.monotonic()
        self.processes[2].kill()
        answers = [self.pipes[member].recv() for member in (0, 1)]
        self.handles[:2] = [handle for _, handle in answers]
        shrunk = self.reconfigure([0, 1])
        self.start(SITES[2])
        came = time.monotonic()
        for member in (0, 1):
            self.pipes[member].send(("handle",))
            self.handles[member] = self.pipes[member].recv()
        grown = self.reconfigure([0, 1, 3])
        return Sample(self._backend, max(when for when, _ in answers) - killed, shrunk - killed, grown - came)

    def end(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
            process.join()


def _page(conditions: Conditions, samples: list[Sample]) -> str:
    def row(backend: str) -> str:
        own = [one for one in samples if one.backend == backend]
        columns = zip(*((one.noticed, one.shrunk, one.grown) for one in own), strict=True)
        return (
            f"| {backend} | "
            + " | ".join(f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})" for times in columns)
            + " |"
        )

    return "\n".join(
        [
            "# Reconfigure: a site is killed, and comes back",
            "",
            *conditions.lines(),
            load_at_end(),
            "",
            f"Three processes on loopback sum {4 * ELEMENTS >> 20} MiB a step. Seconds, median (least to most) of "
            f"{len(samples) // 2} runs each, in turns; geocomm with TLS 1.3 between the sites, Gloo in plaintext. "
            "Noticed: from SIGKILL to the error on the last survivor. Next step: from SIGKILL to the end of the next "
            "right step of both survivors. Back: from the new process's handle to the end of the next right step of "
            "all three.",
            "",
            "| backend | noticed | next step | back |",
            "|---|---:|---:|---:|",
            row("geocomm"),
            row("gloo"),
        ]
    )


def main() -> int:
    """Run, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    arguments = parser.parse_args()
    from geocomm.security.job_ca import JobCa

    multiprocessing.set_forkserver_preload(["torch", "geocomm.group.backend.reconfiguration"])
    conditions = Conditions.here(shlex.join(["python", "benchmarks/bench_reconfigure.py", *sys.argv[1:]]))
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        JobCa.create(keys, "bench", list(SITES), 30)
        for _ in range(arguments.repeats):
            for backend in ("geocomm", "gloo"):
                job = Job(backend, keys)
                try:
                    samples.append(job.run())
                finally:
                    job.end()
                print(samples[-1], flush=True)
    write_pair(
        arguments.out / "reconfigure.md", _page(conditions, samples), {"samples": [asdict(one) for one in samples]}
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
