"""Jobs of `geocomm run`: what starts their nodes on this machine, and looks at their processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.addresses import listeners, socket_inodes
from support import hub_ranks
from support.hub_support import HUB_HOST, SECURITY
from support.local_jobs import environment
from support.warm_executable import forked_for, warm_executable

RANKS = Path(hub_ranks.__file__)
LIMIT_S = 200


class Job:
    """Processes of a job, each with its output in a file; ended with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, anew: bool = False, **variables: str) -> None:
        """Python with these arguments; anew: a new interpreter, as all that it starts."""
        self.start_program(sys.executable if anew else warm_executable(), *command, **variables)

    def start_program(self, *command: str, **variables: str) -> None:
        with self.log(len(self.processes)).open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    command,
                    env=environment(**variables),
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def log(self, number: int) -> Path:
        return self.folder / f"log{number}"

    def output(self) -> str:
        return "\n".join(
            f"--- process {n}\n{self.log(n).read_text(errors='replace')[-5000:]}" for n in range(len(self.processes))
        )

    def fact(self, name: str) -> dict[str, Any]:
        """What a rank reported under `name`."""
        end = time.monotonic() + LIMIT_S
        while not (path := self.folder / f"{name}.json").exists():
            if time.monotonic() > end or any(process.poll() not in (None, 0) for process in self.processes):
                pytest.fail(f"no {name}\n{self.output()}")
            time.sleep(0.05)
        return json.loads(path.read_text())

    def wait_for_listener(self, host: str, port: int) -> None:
        """Until one of the processes, or of their children, listens there."""
        end = time.monotonic() + LIMIT_S
        while (host, port) not in listeners_of(family([process.pid for process in self.processes])):
            if time.monotonic() > end:
                pytest.fail(f"nobody listens at {host}:{port}\n{self.output()}")
            time.sleep(0.2)

    def end(self, limit_s: float = LIMIT_S) -> list[int]:
        """The exit statuses, once all are done."""
        end = time.monotonic() + limit_s
        while any(process.poll() is None for process in self.processes):
            if time.monotonic() > end:
                pytest.fail(f"still running\n{self.output()}")
            time.sleep(0.05)
        return [process.returncode for process in self.processes]

    def kill(self, number: int) -> None:
        """A process and all that it started, as when its machine loses power."""
        for pid in family([self.processes[number].pid]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.processes[number].wait()


@contextlib.contextmanager
def job_in(folder: Path) -> Generator[Job]:
    """A job without processes yet; folder: of its files, which is made."""
    folder.mkdir()
    job = Job(folder)
    try:
        yield job
    finally:
        for number in range(len(job.processes)):
            job.kill(number)


def family(pids: list[int]) -> set[int]:
    """The processes and all their descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    parents |= forked_for()
    found = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def until_gone(pids: set[int], limit_s: float = 60.0) -> None:
    """Return once none of these runs. A forked one whose command has died is killed a moment after it."""
    end = time.monotonic() + limit_s
    while left := [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]:
        if time.monotonic() > end:
            pytest.fail(f"processes {left} still run")
        time.sleep(0.05)


def start_nodes(job: Job, keys: Path, port: int, work: str, *torchrun: str) -> None:
    """Two sites of one node with one rank each, on this machine."""
    for node in range(2):
        start_node(job, keys, port, node, work, *torchrun)


def start_node(
    job: Job,
    keys: Path,
    port: int,
    node: int,
    work: str,
    *torchrun: str,
    sites: str = "ab",
    node_rank: int | None = None,
    telemetry: Path | None = None,
    numbered: bool = True,
    anew: bool = False,
    **variables: str,
) -> None:
    """numbered: with --nnodes and --node-rank. anew: see Job.start."""
    number = node if node_rank is None else node_rank
    job.start(
        *("-m", "geocomm", "run", "--hub", f"{HUB_HOST}:{port}"),
        *(() if telemetry is None else ("--telemetry", str(telemetry))),
        "--",
        *(("--nnodes", "2", "--node-rank", str(number)) if numbered else ()),
        *("--nproc-per-node", "1", *torchrun),
        *(str(RANKS), work, str(job.folder)),
        GEOCOMM_KEYS=str(keys / sites[node]),
        GEOCOMM_SECURITY=SECURITY,
        anew=anew,
        **variables,
    )


def listeners_of(pids: set[int]) -> set[tuple[str, int]]:
    """(address, port) of every TCP socket that one of these processes listens on."""
    inodes = set[int]().union(*map(socket_inodes, pids))
    return {(one.host, one.port) for one in listeners() if one.inode in inodes}
