"""Reports of this process to the node's collector, once a second, over a unix socket.

A thread of its own makes and sends them. Training waits for nothing: a collector that is away, or slow, gets the next
one. Every report that is made has a number, so that the run store sees which were lost, wherever that was.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import shutil
import socket
import threading
import time
import traceback
import zlib
from collections.abc import Callable
from typing import Any, cast

from geocomm.core.environment import egress_budget, egress_price, run_folder
from geocomm.core.message_log import CalmLog, logger
from geocomm.core.options import Options, transport_keys
from geocomm.core.place import local_rank
from geocomm.metrics.cpu_time import CpuTime
from geocomm.metrics.events import EventReader
from geocomm.metrics.logs import op_log, round_log
from geocomm.metrics.training import training
from geocomm.security.key_folder import certificate_ends

VERSION = 4
"""What the rank that makes a report and collectors must agree on."""
MAX_PACKED_BYTES = 128 << 10
"""The longest report as it travels: what Linux keeps of a connection by default, until it is read, has room for it."""
INTERVAL_S = 1.0
_MOST_OPERATIONS = 1000
_MOST_ROUNDS = 200
_MOMENT_NS = 100_000
_DECIMALS = 4
_LEAST_DIGITS = 5
_DIGITS: dict[str, int] = dict.fromkeys(
    (
        *("rtt_us", "min_rtt_us", "delivery_rate", "pacing_rate", "window_bytes", "unsent_bytes"),
        *("disk_free_bytes", "disk_size_bytes"),
    ),
    3,
)
"""Significant digits of numbers that differ each time: with all digits they would compress badly."""
_DISK_EVERY_S = 60.0
_COMPLAINT_S = 60.0
_SEND_LIMIT_S = 0.5
"""A collector that is busy has so long to make room."""
_AWAY_S = 30.0
"""A collector that took nothing for so long is told of. One that died is started again before."""


class ReportSender:
    """Reports until close(), which sends the last one."""

    _CLOSE_S = 10.0

    def __init__(
        self,
        path: str,
        rank: int,
        site: str,
        read_stats: Callable[[], dict[str, Any]],
        events: EventReader,
        options: Options,
    ) -> None:
        """path: of the collector's socket, which need not be there yet. options: of the first group."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._path = path
        self._own: dict[str, Any] = {"version": VERSION, "site": site, "rank": rank, "host": platform.node()}
        self._own["process"] = secrets.token_hex(8)
        self._own["egress_dollars_per_gb"] = egress_price()
        self._own["egress_dollars_per_day"] = egress_budget()
        keys = transport_keys(options)
        self._own["certificate_ends"] = certificate_ends(keys) if keys else None
        self._own["options"] = {name: text for name, text in options.not_as_by_default().items() if name != "site"}
        # One rank of a machine tells it for all.
        self._disk = _Disk(run_folder() if local_rank() == 0 else None)
        self._cpu = CpuTime()
        self._read_stats = read_stats
        self._events = events
        self._sequence = 0
        self._connection: socket.socket | None = None
        self._tells = local_rank() == 0  # for all ranks of its machine
        self._operations = _Log(op_log, _MOST_OPERATIONS)
        self._rounds = _Log(round_log, _MOST_ROUNDS)
        self._optimizers = register_optimizer_step_post_hook(_optimizer_stepped)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="geocomm-reports", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The counters must still be readable."""
        self._optimizers.remove()
        self._closing.set()
        self._thread.join(self._CLOSE_S)

    def leave_to_parent(self) -> None:
        """Report nothing in a forked child, which does not have the thread."""

    def _run(self) -> None:
        final, complain, taken_at = False, CalmLog(logger().warning, _COMPLAINT_S), time.monotonic()
        while not final:
            # The ranks of a machine report at the same moment, so that their collector sends one packet.
            final = self._closing.wait(INTERVAL_S - time.monotonic() % INTERVAL_S)
            try:
                if _is_ours(self._path):  # else nobody reads: nothing is made
                    self._send(zlib.compress(self._report(final=final), 1))
                    taken_at = time.monotonic()
            except OSError:  # away, or has not read what came before
                self._disconnect()
            except Exception:  # the next one may be made
                complain(f"a report of this rank could not be made: {traceback.format_exc()}")
            if self._tells and not final and (away_s := time.monotonic() - taken_at) > _AWAY_S:
                complain(
                    f"the collector at {self._path} has taken no reports of this machine's ranks for {away_s:.0f} s: "
                    "geocomm top, the page and alerts do not see them, and training goes on. What the collector said "
                    "last is above; start the job again to have them"
                )
        self._disconnect()

    def _send(self, packed: bytes) -> None:
        """Give a report to the collector. OSError: it does not take it; ValueError: no collector would."""
        if len(packed) > MAX_PACKED_BYTES:
            raise ValueError(f"it has {len(packed)} bytes, and a report has {MAX_PACKED_BYTES} at the most")
        if self._connection is not None:
            try:
                self._connection.send(packed, socket.MSG_NOSIGNAL)
                return
            except ConnectionError:  # it was started again
                self._disconnect()
        # A connection of this rank's own: a socket that all ranks share would take ten reports of one moment.
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._connection.settimeout(_SEND_LIMIT_S)
        self._connection.connect(self._path)
        self._connection.send(packed, socket.MSG_NOSIGNAL)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _report(self, *, final: bool) -> bytes:
        self._sequence += 1
        last, steps = training.take()
        moment = {"sequence": self._sequence, "time": time.time(), "now_ns": time.monotonic_ns(), "final": final}
        stats = {**self._read_stats(), **self._cpu.lost()}
        more = {
            "training": last,
            "steps": steps,
            "operations": self._operations.news(final=final),
            "rounds": self._rounds.news(final=final),
            "events": [event.line() for event in self._events.take()],
        }
        more = {name: value for name, value in more.items() if value}
        said = {**self._own, **self._disk.room(), **moment, "stats": stats, **more}
        return json.dumps(_rounded(said), separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> Any:
    """What JSON has for a value of another kind: for a number of NumPy or torch, that number."""
    return value.item() if hasattr(value, "item") else str(value)


def _is_ours(path: str) -> bool:
    """Whether there is a socket, and it is not another user's."""
    with contextlib.suppress(OSError):
        return os.stat(path).st_uid in (0, os.getuid())
    return False


def _rounded(value: Any, name: str = "") -> Any:
    """Without digits that nobody reads, which pack badly: moments and seconds to 0.1 ms, other numbers with five digits
    at least, those of _DIGITS with as many."""
    if isinstance(value, dict):
        return {key: _rounded(item, str(key)) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_rounded(item, name) for item in cast("list[Any]", value)]
    if isinstance(value, float):
        if abs(value) >= 1 or name.endswith("seconds"):
            return round(value, _DECIMALS)
        return float(f"{value:.{_LEAST_DIGITS}g}")
    if not isinstance(value, int):
        return value
    if name in _DIGITS:
        return int(float(f"{value:.{_DIGITS[name]}g}"))
    if name == "coding_ns":
        return round(value / _MOMENT_NS) * _MOMENT_NS
    return value // _MOMENT_NS * _MOMENT_NS if name.endswith("_ns") else value


def _optimizer_stepped(optimizer: object, _arguments: object, _named: object) -> None:
    training.optimizer_stepped(optimizer)


class _Disk:
    """The room on the disk of a folder. It changes seldom, so that reports are not longer for it."""

    def __init__(self, folder: str | None) -> None:
        """None: of no disk."""
        self._folder = folder
        self._room: dict[str, int | None] = {"disk_free_bytes": None, "disk_size_bytes": None}
        self._next_s = 0.0

    def room(self) -> dict[str, int | None]:
        """The room on the disk, as fields of a report's head. Looks once a minute."""
        if self._folder is not None and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _DISK_EVERY_S
            with contextlib.suppress(OSError):  # what was there a minute ago
                disk = shutil.disk_usage(self._folder)
                self._room = {"disk_free_bytes": disk.free, "disk_size_bytes": disk.free + disk.used}
        return self._room


class _Log:
    """What is new in `op_log` or `round_log`: rows under way, and those that ended before the last report, since the
    program may wait for a row after its end. Each of the latter is told once."""

    def __init__(self, read: Callable[[int], list[dict[str, Any]]], most: int) -> None:
        self._read = read
        self._most = most
        self._told = 0  # all up to this number
        self._ended_before = 0

    def news(self, *, final: bool) -> list[dict[str, Any]]:
        now_ns = time.monotonic_ns()
        before, self._ended_before = now_ns if final else self._ended_before, now_ns
        rows = self._read(self._told)
        told = [row for row in rows if (ended := _ended_ns(row)) is None or ended < before]
        for row in rows:
            if (ended := _ended_ns(row)) is None or ended >= before:
                break
            self._told = row["number"]
        return told[-self._most :]


def _ended_ns(row: dict[str, Any]) -> int | None:
    """When an operation or a round ended; None: it is under way."""
    ended = row["ended_ns"] if "ended_ns" in row else row["applied_ns"]
    return 0 if ended is None and row["failed"] else ended
