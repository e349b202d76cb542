"""What runs at each site of bench_flood.py: a rank of the job, and the strangers that flood a rank.

    bench_flood_worker.py site FOLDER PYTHON    starts the two others; PYTHON has the geocomm that the rank uses
    bench_flood_worker.py rank FOLDER
    bench_flood_worker.py strangers FOLDER

All read FOLDER/order.json, which bench_flood.py replaces: `flood` (null: none; else `rate`, in connections a second,
and `come_from`), `cut` (a number: the link is to be cut for the so many-th time) and `stop`. Each writes lines of JSON
for it to read.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ONE_ADDRESS, MANY_ADDRESSES, PEERS_ADDRESS = "one address", "200 addresses", "the peer's address"
ELEMENTS = 65536
PAUSE_S = 0.05
"""Between two all-reduces, in place of computing."""
HOLD_S = 5.0
"""A stranger leaves a connection open for so long."""
POLL_S = 0.02
REPORT_S = 0.5
FIRST_PORT = 29600
RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Orders:
    """The newest order, looked for at each call."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "order.json"
        self._stamp = (0, 0)
        self._order: dict[str, Any] = {"flood": None, "cut": 0, "stop": False}

    def now(self) -> dict[str, Any]:
        """All fields."""
        with contextlib.suppress(FileNotFoundError):
            status = self._path.stat()
            if (stamp := (status.st_ino, status.st_mtime_ns)) != self._stamp:
                self._order = json.loads(self._path.read_text(encoding="utf-8"))
                self._stamp = stamp
        return self._order


def write_order(folder: Path, order: dict[str, Any]) -> None:
    """In place of the one before, at once."""
    new = folder / "order.new"
    new.write_text(json.dumps(order), encoding="utf-8")
    new.replace(folder / "order.json")


class Lines:
    """A file of JSON lines that somebody reads along."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)

    def write(self, **fields: Any) -> None:
        """One line."""
        self._file.write(json.dumps(fields) + "\n")


def own_address() -> str:
    """This site's on the emulated network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], 9))  # sends nothing
        return probe.getsockname()[0]


def run_site(folder: Path, python: str) -> int:
    """The exit status of the rank."""
    rank = int(os.environ["NODE_RANK"])
    (folder / f"address-{rank}").write_text(own_address(), encoding="utf-8")
    worker = str(Path(__file__).resolve())
    strangers = subprocess.Popen([sys.executable, worker, "strangers", str(folder)])
    try:
        environment = dict(os.environ) | {"GEOCOMM_PORT": str(FIRST_PORT + rank)}
        return subprocess.run([python, worker, "rank", str(folder)], env=environment, check=False).returncode
    finally:
        strangers.kill()
        strangers.wait()


def contribution(rank: int, number: int) -> Any:
    """What a rank puts into a round: whole numbers, so that float32 sums are exact in any order."""
    import torch

    return (torch.arange(ELEMENTS) * (2 * rank + 1) + 7919 * number).remainder(1021).to(torch.float32)


def dialed_ports(peers_port: int) -> set[int]:
    """Local ports of this process's connections to the peer's listener; none where it is the peer that dials."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.getpeername()[1] == peers_port:
                    found.add(one.getsockname()[1])
    return found


def cut_link(peers_port: int) -> bool:
    """Abort all connections with the peer, with a reset, as a firewall would. False: this side did not dial them."""
    ports = dialed_ports(peers_port)
    if not ports:
        return False
    chosen = " or ".join(f"sport = :{port}" for port in ports)
    killed = subprocess.run(["ss", "-K", f"dport = :{peers_port} and ( {chosen} )"], capture_output=True, check=False)
    if killed.returncode != 0 or dialed_ports(peers_port) & ports:
        raise RuntimeError(f"ss -K cuts no connection: is it allowed here? {killed.stderr.decode(errors='replace')}")
    return True


def run_rank(folder: Path) -> None:
    """Verified all-reduces until told to stop; the link is cut on order."""
    import torch
    import torch.distributed as dist

    import geocomm

    torch.set_num_threads(1)
    rank = int(os.environ["NODE_RANK"])
    lines, orders = Lines(folder / f"rank-{rank}.jsonl"), Orders(folder)
    lines.write(pid=os.getpid(), geocomm=geocomm.__file__)
    dist.init_process_group("geocomm", init_method=f"file://{folder}/store", rank=rank, world_size=2)

    def resumes() -> int:
        return sum(peer["resumes"] for peer in geocomm.stats()["peers"])

    stop, number, last_cut, cut_at, resumed_before = False, 0, 0, 0.0, 0
    while not stop:
        order = orders.now()
        values = contribution(rank, number)
        values[0] = float(order["stop"])
        if order["cut"] > last_cut:
            last_cut, resumed_before, began = order["cut"], resumes(), time.monotonic()
            cut_at = began if cut_link(FIRST_PORT + 1 - rank) else 0.0
        began = time.monotonic()
        dist.all_reduce(values)
        ended = time.monotonic()
        expected = contribution(0, number) + contribution(1, number)
        if not torch.equal(values[1:], expected[1:]):
            raise SystemExit(f"round {number}: {int((values[1:] != expected[1:]).sum())} elements are wrong")
        lines.write(round=number, ended=ended, took=ended - began, disturbed=cut_at > 0)
        # What the peer had sent before the cut may complete one round without the link.
        if cut_at > 0 and resumes() > resumed_before:
            lines.write(cut=last_cut, resumed_after=ended - cut_at)
            cut_at = 0.0
        stop = values[0].item() > 0
        number += 1
        time.sleep(PAUSE_S)
    peer = geocomm.stats()["peers"][0]
    lines.write(streams=peer["streams"], cipher=peer["cipher"], resumes=peer["resumes"])
    dist.destroy_process_group()


class Strangers:
    """Dial a rank at a rate, send a ClientHello each, and say nothing more."""

    def __init__(self, hello: bytes) -> None:
        self._hello = hello
        self._epoll = select.epoll()
        self._open: collections.deque[tuple[float, socket.socket]] = collections.deque()  # oldest first
        self._connecting: dict[int, socket.socket] = {}
        self._next = 0
        self.hellos = 0
        """That the rank's kernel has taken."""

    def dial(self, target: tuple[str, int], sources: list[str]) -> None:
        """One connection more."""
        one = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)  # no port waits for its time to end
        if sources:
            one.bind((sources[self._next % len(sources)], 0))
            self._next += 1
        self._open.append((time.monotonic(), one))
        error = one.connect_ex(target)
        if error not in (0, errno.EINPROGRESS) or self._greet(one):
            return
        self._connecting[one.fileno()] = one
        self._epoll.register(one.fileno(), select.EPOLLOUT)

    def _greet(self, one: socket.socket) -> bool:
        """False: not connected yet."""
        try:
            one.send(self._hello)
            self.hellos += 1
        except BlockingIOError:
            return False
        except OSError:
            pass  # refused, or reset
        return True

    def wait(self, seconds: float) -> None:
        """Greet on connections that come up meanwhile."""
        for number, _ in self._epoll.poll(seconds):
            if self._greet(self._connecting[number]):
                self._forget(number)

    def _forget(self, number: int) -> None:
        del self._connecting[number]
        self._epoll.unregister(number)

    def close(self, older_than_s: float) -> None:
        """With a reset."""
        limit = time.monotonic() - older_than_s
        while self._open and self._open[0][0] <= limit:
            _, one = self._open.popleft()
            if one.fileno() in self._connecting:
                self._forget(one.fileno())
            one.close()


def aim(flood: dict[str, Any], folder: Path) -> tuple[tuple[str, int], list[str]]:
    """Whom to dial, and from where. Addresses of loopback stand for those of other machines."""
    rank = int(os.environ["NODE_RANK"])
    if flood["come_from"] == PEERS_ADDRESS:
        other = (folder / f"address-{1 - rank}").read_text(encoding="utf-8")
        return (other, FIRST_PORT + 1 - rank), []
    many = [f"127.0.1.{number}" for number in range(1, 201)]
    return ("127.0.0.1", FIRST_PORT + rank), many if flood["come_from"] == MANY_ADDRESSES else ["127.0.0.9"]


def run_strangers(folder: Path) -> None:
    """Until killed."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    orders = Orders(folder)
    lines = Lines(folder / f"strangers-{os.environ['NODE_RANK']}.jsonl")
    strangers = Strangers((folder / "client-hello").read_bytes())
    flood: dict[str, Any] | None = None
    target, sources = ("", 0), [""]
    next_dial = next_report = 0.0
    while True:
        now = time.monotonic()
        if (newest := orders.now()["flood"]) != flood:
            flood, next_dial = newest, now
            if flood:
                target, sources = aim(flood, folder)
            else:
                strangers.close(0)
        if now >= next_report:
            lines.write(time=now, hellos=strangers.hellos)
            next_report = now + REPORT_S
        while flood and next_dial <= now:
            strangers.dial(target, sources)
            next_dial += 1 / flood["rate"]
        strangers.close(HOLD_S)
        strangers.wait(min(POLL_S, max(0.0, next_dial - time.monotonic())) if flood else POLL_S)


def main() -> int:
    """Exit status: the rank's."""
    role, folder = sys.argv[1], Path(sys.argv[2])
    if role == "site":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the strangers end as well
        return run_site(folder, sys.argv[3])
    run_rank(folder) if role == "rank" else run_strangers(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
