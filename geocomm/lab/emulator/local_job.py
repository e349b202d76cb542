"""A command as all the ranks of a job on this machine, over loopback, and which processes are such."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from geocomm.core.addresses import free_port
from geocomm.core.place import rank_variables, without_place

GRACE_S = 10.0
"""The time that the other ranks get once one has failed."""


def run_local_ranks(
    command: Sequence[str],
    sites: Sequence[str | None],
    log: IO[str],
) -> list[int]:
    """Run `command` once per entry of `sites`, which is that rank's site (None: it names none), and wait.

    Environment: `bare_environment()`, and what makes them the ranks of a job. Output and errors go to `log`. Once a
    rank has failed, the others are killed after GRACE_S. The exit statuses, by rank.
    """
    common = bare_environment() | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, site in enumerate(sites):
            own = rank_variables(rank, len(sites), rank, len(sites))
            own |= {} if site is None else {"GEOCOMM_SITE": site}
            processes.append(subprocess.Popen(command, env=common | own, stdout=log, stderr=log))
        return _wait_all(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def bare_environment() -> dict[str, str]:
    """This process's, without what would make a rank of it or change what geocomm does."""
    own = ("GEOCOMM_CODEC", "GEOCOMM_MIN_COMPRESS_BYTES", "GEOCOMM_SITE")
    return {name: value for name, value in without_place(os.environ).items() if name not in own}


def _wait_all(processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    statuses: list[int] = []
    failed = False
    for process in processes:
        try:
            statuses.append(process.wait(GRACE_S if failed else None))
        except subprocess.TimeoutExpired:
            process.kill()
            statuses.append(process.wait())
        failed = failed or statuses[-1] != 0
    return statuses


def processes_with(variables: Mapping[str, str]) -> list[int]:
    """This user's processes that were started with these environment variables, the oldest first."""
    marks = {f"{name}={value}".encode() for name, value in variables.items()}
    found: list[tuple[int, int]] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            started = int((process / "stat").read_text().rpartition(")")[2].split()[19])
        except OSError:  # it has ended, or is another user's
            continue
        if marks <= set(environment):
            found.append((started, int(process.name)))
    return [process for _, process in sorted(found)]
