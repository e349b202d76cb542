"""What tests share that start programs on this machine: their variables, and ports that nobody has."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def environment(**variables: str) -> dict[str, str]:
    """Of a process that imports this repository's geocomm: the tests' own but for GEOCOMM_*, and `variables`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GEOCOMM_")}
    return kept | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"} | variables


_WORKERS = 16
"""Each has its own range of ports; more than these share them."""
_given = set[int]()
"""Ports of this process. What is to listen there may not have begun to when a test asks for another one."""


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Neighbours that were free a moment ago. None that the kernel gives to whoever asks for any, and none that another
    worker of pytest-xdist may take before this one's test does."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    width = (max(first, 30_000) - 10_000) // _WORKERS
    begin = 10_000 + worker * width
    chance = random.SystemRandom()
    while True:
        if len(_given) > width // 2:
            _given.clear()
        at = chance.randrange(begin, begin + width - count)
        ports = range(at, at + count)
        if not _given.isdisjoint(ports):
            continue
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in ports:
                held.enter_context(socket.create_server((host, port)))
            _given.update(ports)
            return list(ports)


def free_port(host: str = "127.0.0.1") -> int:
    return free_ports(1, host)[0]
