"""The part of `geocomm doctor` that asks a doctor at another machine: reached, how fast, how large, what time it is.

The protocol, over TCP, in lines: the caller says GREETING and gets it back. To "clock" the answer is the
answerer's time in ns when the question came and when the answer goes; after "echo N", N bytes go there and come back.
Nothing is authenticated or encrypted, and nothing told but the time. The answerer bounds lines, echoes, callers, and
their time.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Self

from geocomm.observe.doctor.doctor_machine import Finding, State

GREETING = b"geocomm doctor 1\n"
MAX_ECHO_BYTES = 256 * 1024
_MAX_LINE_BYTES = 64
_MAX_CALLERS = 32
_CALL_S = 30.0
_CLOCK_QUESTIONS = 8
_BAD_SKEW_S, _WARNING_SKEW_S = 60.0, 1.0
"""Chosen: the second is where the alert ClockSkew is critical; a clock that is off by the first has no NTP."""
_IPV4_MTU = (socket.IPPROTO_IP, 14)  # <linux/in.h>
_IPV6_MTU = (socket.IPPROTO_IPV6, 24)
_SMALLEST_COMMON_MTU = 1400
"""Chosen: of Ethernet's 1500 bytes, tunnels such as WireGuard and VXLAN leave as many or more."""


@dataclass(frozen=True)
class CallResult:
    """What a call told. `skew_s`: the peer's clock less this one's, known to `rtt_s` / 2."""

    rtt_s: float
    skew_s: float
    mtu_bytes: int
    echoed: bool


class Answerer:
    """Answers doctors of other machines until it is closed. A context manager."""

    def __init__(self, port: int = 0) -> None:
        """Listens at once, on every address. OSError."""
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._listener = socket.create_server(("", port), family=family, backlog=_MAX_CALLERS, dualstack_ipv6=both)
        self.port: int = self._listener.getsockname()[1]
        self._room = threading.Semaphore(_MAX_CALLERS)
        self._thread = threading.Thread(target=self._serve, name="geocomm-doctor", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno == errno.EINVAL:  # shut down
                    return
                time.sleep(0.1)
                continue
            if self._room.acquire(blocking=False):
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
            else:
                connection.close()

    def _answer(self, connection: socket.socket) -> None:
        end = time.monotonic() + _CALL_S
        try:
            with connection, connection.makefile("rb") as lines:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while (left := end - time.monotonic()) > 0:
                    connection.settimeout(left)
                    line = lines.readline(_MAX_LINE_BYTES)
                    came = time.time_ns()
                    if line == GREETING:
                        connection.sendall(GREETING)
                    elif line == b"clock\n":
                        connection.sendall(b"%d %d\n" % (came, time.time_ns()))
                    elif line.startswith(b"echo ") and line[5:-1].isdigit() and int(line[5:]) <= MAX_ECHO_BYTES:
                        connection.sendall(lines.read(int(line[5:])))
                    else:
                        return
        except OSError:
            pass  # the caller's trouble
        finally:
            self._room.release()


class NoDoctorError(ConnectionError):
    """Somebody listens there, but not a doctor."""


def call(host: str, port: int, timeout_s: float = 10.0) -> CallResult:
    """Ask the doctor at `host`, or at the first of several with commas that is reached. OSError where none is,
    NoDoctorError where something else answers."""
    with ExitStack() as stack:
        connection = stack.enter_context(_connect(host.split(","), port, timeout_s))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = stack.enter_context(connection.makefile("rb"))
        try:
            connection.sendall(GREETING)
            if lines.readline(_MAX_LINE_BYTES) != GREETING:
                raise NoDoctorError(f"what listens at {host}:{port} is no geocomm doctor")
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            raise NoDoctorError(f"what listens at {host}:{port} is no geocomm doctor") from None
        rtt_s, skew_s = min(_ask_clock(connection, lines) for _ in range(_CLOCK_QUESTIONS))
        mtu_bytes = _mtu_bytes(connection)
        echoed = _echo(connection, lines)
        with contextlib.suppress(OSError):  # where nothing came through, there may be no connection any more
            mtu_bytes = _mtu_bytes(connection)
    return CallResult(rtt_s, skew_s, mtu_bytes, echoed)


def _connect(hosts: Sequence[str], port: int, timeout_s: float) -> socket.socket:
    answers: dict[str, OSError] = {}
    for host in hosts:
        try:
            return socket.create_connection((host, port), timeout_s)
        except OSError as error:
            answers[host] = error
    last = answers[hosts[-1]]
    if len(hosts) == 1:
        raise last
    told = ", ".join(f"{host}: {error.strerror or error}" for host, error in answers.items())
    raise OSError(last.errno or errno.ETIMEDOUT, told)


def _mtu_bytes(connection: socket.socket) -> int:
    """The MTU of the path, as far as the kernel has learned it."""
    return connection.getsockopt(*(_IPV6_MTU if connection.family == socket.AF_INET6 else _IPV4_MTU))


def _ask_clock(connection: socket.socket, lines: IO[bytes]) -> tuple[float, float]:
    asked = time.time_ns()
    connection.sendall(b"clock\n")
    words = lines.readline(_MAX_LINE_BYTES).split()
    heard = time.time_ns()
    if len(words) != 2 or not all(word.isdigit() for word in words):
        raise NoDoctorError("the doctor there does not tell the time")
    came, went = map(int, words)
    return (heard - asked - (went - came)) / 1e9, (came - asked + went - heard) / 2e9


def _echo(connection: socket.socket, lines: IO[bytes]) -> bool:
    """Whether many full packets pass both ways, where small ones did."""
    try:
        connection.sendall(b"echo %d\n" % MAX_ECHO_BYTES)
        sender = threading.Thread(target=_send_quietly, args=(connection, bytes(MAX_ECHO_BYTES)), daemon=True)
        sender.start()
        whole = len(lines.read(MAX_ECHO_BYTES)) == MAX_ECHO_BYTES
        sender.join()
        return whole
    except OSError:
        return False


def _send_quietly(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the reader finds out
        connection.sendall(data)


def peer_findings(name: str, host: str, port: int, timeout_s: float = 10.0) -> Iterator[Finding]:
    """What there is to say of the way to a peer, called `name` in the findings. host: as in `call`."""
    try:
        seen = call(host, port, timeout_s)
    except NoDoctorError as error:
        fix = f"for clock, MTU and round trip run there: geocomm doctor --listen {port}"
        yield Finding(f"{name}: reached", f"yes; {error}", State.NOTE, fix)
        return
    except OSError as error:
        value = error.strerror or str(error)
        yield Finding(f"{name}: reached", value, State.BAD, _why_not_reached(error, host, port))
        return
    yield Finding(f"{name}: round trip", f"{seen.rtt_s * 1e3:.1f} ms", State.OK)
    yield _mtu_finding(name, seen)
    skew = f"{seen.skew_s:+.3f} s, known to {seen.rtt_s / 2:.3f} s"
    sure_s = abs(seen.skew_s) - seen.rtt_s / 2
    if sure_s < _WARNING_SKEW_S:
        yield Finding(f"{name}: its clock", skew, State.OK)
    else:
        state = State.BAD if sure_s >= _BAD_SKEW_S else State.WARNING
        fix = "at both: timedatectl set-ntp true, or chrony; certificates hold from a moment on, and logs are compared"
        yield Finding(f"{name}: its clock", skew, state, fix)


def _mtu_finding(name: str, seen: CallResult) -> Finding:
    name = f"{name}: path MTU"
    value = f"{seen.mtu_bytes} bytes"
    if not seen.echoed:
        fix = (
            "full packets get lost where small ones pass: a wrong MTU on the way and a firewall that drops ICMP. As "
            "root: sysctl -w net.ipv4.tcp_mtu_probing=1, or a lower MTU of the interface (ip link set DEVICE mtu 1400)"
        )
        return Finding(name, f"{value}, but large data does not pass", State.BAD, fix)
    if seen.mtu_bytes < _SMALLEST_COMMON_MTU:
        fix = "a tunnel with a small MTU costs speed; raise it if it is yours"
        return Finding(name, value, State.WARNING, fix)
    return Finding(name, value, State.OK)


def _why_not_reached(error: OSError, host: str, port: int) -> str:
    if isinstance(error, socket.gaierror):
        return f"{host} is not a name that this machine can look up: its address, or a line in /etc/hosts"
    if isinstance(error, ConnectionRefusedError):
        return f"the machine answers but nothing listens at port {port}; run there: geocomm doctor --listen {port}"
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return f"there is no route: check the VPN or the routing table (ip route get {host})"
    return (
        f"nothing comes back: let TCP port {port} through the firewalls and the NAT on the way, and check that {host} "
        "is up"
    )
