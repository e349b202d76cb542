"""A command once per site over this machine's loopback: what is left of an emulated WAN where the machine forbids one.

The bytes between the sites are counted; loopback has no delay, no rate and no loss.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from geocomm.core.addresses import free_port, socket_inodes
from geocomm.core.child_processes import output_of
from geocomm.lab.emulator.emulated_links import WanUnavailableError
from geocomm.lab.emulator.local_job import GRACE_S, processes_with

# The kernel's side is `sock_diag(7)`: struct inet_diag_msg, and struct tcp_info as its attribute INET_DIAG_INFO.

_SOCK_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_INFO = 2
_ESTABLISHED, _FIN_WAIT1, _FIN_WAIT2, _CLOSE_WAIT = 1, 4, 5, 8
_STATES = sum(1 << state for state in (_ESTABLISHED, _FIN_WAIT1, _FIN_WAIT2, _CLOSE_WAIT))
# Of inet_diag_msg: family, ports, addresses, interface, cookie, then three counters, the user and the inode.
_SOCKET = struct.Struct("=B3x4s16s16sI8s12xII")
_ATTRIBUTE = struct.Struct("=HH")
_RECEIVED_AT = 128
"""The place of tcpi_bytes_received."""
_MAPPED = bytes(10) + b"\xff\xff"
"""How the address of an IPv6 socket begins that speaks IPv4."""

End = tuple[bytes, bytes]
"""Address and port."""


@dataclass(frozen=True)
class TcpSocket:
    """One end of a connection."""

    cookie: bytes
    """No other socket has it, ever."""
    inode: int
    local: End
    remote: End
    received_bytes: int
    """Payload: without headers, and without what came twice."""


def tcp_sockets() -> Iterator[TcpSocket]:
    """All connected ones of this network namespace. OSError: the kernel does not tell."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _STATES)
            kernel.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
            yield from _answers(kernel)


def _answers(kernel: socket.socket) -> Iterator[TcpSocket]:
    while True:
        messages = kernel.recv(1 << 16)
        while messages:
            length, kind, *_ = _HEADER.unpack_from(messages)
            message, messages = messages[_HEADER.size : length], messages[_aligned(length) :]
            if kind == _NLMSG_DONE:
                return
            if kind == _NLMSG_ERROR:
                number = -struct.unpack_from("=i", message)[0]
                raise OSError(number, f"sock_diag: {os.strerror(number)}")
            yield _socket(message)


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def _socket(message: bytes) -> TcpSocket:
    family, ports, source, target, _, cookie, _, inode = _SOCKET.unpack_from(message)
    received, attributes = 0, message[_SOCKET.size :]
    while attributes:
        length, kind = _ATTRIBUTE.unpack_from(attributes)
        if kind == _INFO:
            (received,) = struct.unpack_from("=Q", attributes, _ATTRIBUTE.size + _RECEIVED_AT)
        attributes = attributes[_aligned(length) :]
    return TcpSocket(
        cookie, inode, (_address(family, source), ports[:2]), (_address(family, target), ports[2:]), received
    )


def _address(family: int, address: bytes) -> bytes:
    return address[:4] if family == socket.AF_INET else address.removeprefix(_MAPPED)


class CrossingBytes:
    """Counts what passes between groups of processes. Counts a connection up to the last look before its end."""

    def __init__(self) -> None:
        """Nothing has crossed yet."""
        self._received: dict[bytes, int] = {}

    def look(self, groups: Mapping[str, Collection[int]]) -> int:
        """Payload that the processes of a group have received from those of others, since the first look. OSError: the
        kernel does not tell."""
        group_of = {
            inode: group for group, processes in groups.items() for each in processes for inode in socket_inodes(each)
        }
        sockets = list(tcp_sockets())
        by_end = {(one.local, one.remote): group_of.get(one.inode) for one in sockets}
        for one in sockets:
            here, there = group_of.get(one.inode), by_end.get((one.remote, one.local))
            if one.cookie in self._received or (None not in (here, there) and here != there):
                self._received[one.cookie] = one.received_bytes
        return sum(self._received.values())


RUN_VARIABLE = "GEOCOMM_LOOPBACK_RUN"
PACKET_BYTES, PAYLOAD_BYTES = 1500, 1448
"""Of a full packet of TCP on a real line, with its headers and without."""
_SCAN_S = 1.0
"""How often the sites' processes are looked for anew, which reads much of /proc. What a connection carried before it
was found is counted too."""


class LoopbackRun:
    """One run of a command at several sites. A context manager: leaving it ends all sites."""

    def __init__(
        self,
        sites: Sequence[str],
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: IO[str],
        keys: Path | None = None,
    ) -> None:
        """Start `command` at every site, with the variables that `WanRun` gives it but GEOCOMM_WAN_CONTROL.

        Output and errors go to `log`, each line after its site's name. `keys`: a folder of keys for all sites. Once a
        site has failed, the others are killed after GRACE_S. WanUnavailableError: the kernel does not count the bytes.
        """
        self._name, self._log, self._log_lock = uuid.uuid4().hex, log, threading.Lock()
        self._crossing = CrossingBytes()
        self._members: dict[str, list[int]] = {}
        self._scanned_at = -_SCAN_S
        self._failed_at: float | None = None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._look()
        port = free_port()
        self._readers: list[threading.Thread] = []
        try:
            for node, site in enumerate(sites):
                own = {
                    "GEOCOMM_SITE": site,
                    "NNODES": str(len(sites)),
                    "NODE_RANK": str(node),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "GLOO_SOCKET_IFNAME": "lo",
                    RUN_VARIABLE: self._name,
                } | ({} if keys is None else {"GEOCOMM_KEYS": str(keys / site)})
                self._start(site, command, {**environment, **own})
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def _start(self, site: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # A session of its own: Ctrl-C reaches this process alone.
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._processes[site] = process
        reader = threading.Thread(target=self._pass_on, args=(site, output_of(process)), name="geocomm-loopback-log")
        reader.start()
        self._readers.append(reader)

    def _pass_on(self, site: str, output: IO[bytes]) -> None:
        with output:
            for line in output:
                with self._log_lock:
                    self._log.write(f"[{site}] {line.decode(errors='replace').rstrip()}\n")

    def _look(self) -> int:
        if time.monotonic() - self._scanned_at >= _SCAN_S:
            self._members = {
                site: processes_with({RUN_VARIABLE: self._name, "GEOCOMM_SITE": site}) for site in self._processes
            }
            self._scanned_at = time.monotonic()
        try:
            return self._crossing.look(self._members)
        except OSError as error:
            raise WanUnavailableError(f"this kernel does not count what TCP carries over loopback: {error}") from error

    def running(self) -> bool:
        """Whether a site's command runs. One that has failed ends the others after a while."""
        statuses = [process.poll() for process in self._processes.values()]
        if self._failed_at is None and any(statuses):
            self._failed_at = time.monotonic()
        if self._failed_at is not None and time.monotonic() - self._failed_at > GRACE_S:
            self._kill()
        return None in statuses

    def bytes_sent(self) -> int:
        """Between the sites since the run began, in both directions, as packets of PACKET_BYTES. A connection counts as
        it was when last asked for: ask often."""
        return round(self._look() * PACKET_BYTES / PAYLOAD_BYTES)

    def wait(self) -> int:
        """The exit status: 0, or the first non-zero one of a site; 128 + signal."""
        while self.running():
            time.sleep(0.05)
        statuses = [process.returncode for process in self._processes.values()]
        return next((status if status > 0 else 128 - status for status in statuses if status != 0), 0)

    def _kill(self) -> None:
        """Whatever started what: none of these processes outlives the run."""
        while left := processes_with({RUN_VARIABLE: self._name}):
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            for process in self._processes.values():
                process.poll()
            time.sleep(0.01)

    def __enter__(self) -> Self:
        """The run itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run if it still goes on."""
        for process in self._processes.values():
            process.terminate()
        end = time.monotonic() + GRACE_S
        while self.running() and time.monotonic() < end:
            time.sleep(0.05)
        self._kill()
        for process in self._processes.values():
            process.wait()
        for reader in self._readers:
            reader.join()
