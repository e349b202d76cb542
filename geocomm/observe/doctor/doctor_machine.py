"""The parts of `geocomm doctor` that look at this machine: congestion control, buffers, files, room, ports."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from geocomm.observe.doctor.finding import Finding, State

STREAMS_WITH_BBR = 2
STREAMS_WITHOUT = 16
_IPV4 = "sys/net/ipv4"
_MIB = 1 << 20
_OTHER_FILES = 256  # of Python, torch, data
_TCP_RANGE = (1, 65535)


def usable_congestion_control() -> str:
    """What geocomm's connections will have here: "bbr" where this process may choose it, else the system's."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        with contextlib.suppress(OSError):
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        name = probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return name.rstrip(b"\0").decode()


def congestion_findings(usable: str, proc: Path) -> Iterator[Finding]:
    """`usable`: of usable_congestion_control()."""
    name = "congestion control"
    if usable == "bbr":
        yield Finding(name, usable, State.OK)
        return
    why = "; with CUBIC, a little loss leaves a long link nearly empty"
    available = _words(proc / _IPV4 / "tcp_available_congestion_control")
    if "bbr" not in available:
        fix = "as root: modprobe tcp_bbr; echo tcp_bbr > /etc/modules-load.d/bbr.conf; then run this again"
    else:
        allowed = " ".join([*_words(proc / _IPV4 / "tcp_allowed_congestion_control"), "bbr"])
        fix = f'as root: sysctl -w net.ipv4.tcp_allowed_congestion_control="{allowed}"'
    yield Finding(name, f"{usable}, not bbr", State.WARNING, fix + why)
    if _words(proc / _IPV4 / "tcp_slow_start_after_idle") == ["1"]:
        yield Finding(
            "slow start after idle",
            "on",
            State.WARNING,
            f"as root: sysctl -w net.ipv4.tcp_slow_start_after_idle=0; with it, {usable} starts anew after each pause "
            "between steps",
        )


def streams_of(asked: int | None, congestion_control: str) -> int:
    """Streams to each peer."""
    return asked or (STREAMS_WITH_BBR if congestion_control == "bbr" else STREAMS_WITHOUT)


def buffer_findings(rate_bps: float, rtt_s: float, streams: int, proc: Path) -> Iterator[Finding]:
    """Whether each of `streams` may have the buffers that together fill such a link: 2 · rate · RTT / streams."""
    wanted_bytes = math.ceil(2 * rate_bps / 8 * rtt_s / streams)
    wanted_bytes = math.ceil(wanted_bytes / _MIB) * _MIB
    for limit in ("tcp_rmem", "tcp_wmem"):
        words = _words(proc / _IPV4 / limit)
        if len(words) != 3 or not all(word.isdigit() for word in words):
            yield Finding(limit, "cannot be read", State.NOTE)
            continue
        least, usual, most = map(int, words)
        value = f"have {most / _MIB:.3g} MiB, need {wanted_bytes / _MIB:.0f} MiB"
        if most >= wanted_bytes:
            yield Finding(limit, value, State.OK)
        else:
            yield Finding(
                limit,
                value,
                State.WARNING,
                f'as root: sysctl -w net.ipv4.{limit}="{least} {usual} {wanted_bytes}" (2 · rate · RTT / {streams} '
                "streams; to keep it, a file in /etc/sysctl.d)",
            )


def file_findings(peers: int, streams: int) -> Iterator[Finding]:
    """Whether this process may open the sockets that it will need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OTHER_FILES + peers * (streams + 1)
    enough = soft == resource.RLIM_INFINITY or soft >= wanted
    value = f"have {'no limit' if soft == resource.RLIM_INFINITY else soft}, need {wanted} for {peers} peers"
    if enough:
        yield Finding("open files", value, State.OK)
    elif hard == resource.RLIM_INFINITY or hard >= wanted:
        yield Finding("open files", value, State.BAD, f"before the job: ulimit -n {wanted}")
    else:
        yield Finding(
            "open files",
            f"{value} (hard limit {hard})",
            State.BAD,
            f"'* hard nofile {wanted}' in /etc/security/limits.conf, LimitNOFILE={wanted} in a systemd unit, or "
            f"docker run --ulimit nofile={wanted}; then ulimit -n {wanted}",
        )


def space_findings(folder: Path, wanted_bytes: int) -> Iterator[Finding]:
    """Room on the file system of `folder`."""
    name = f"room in {folder}"
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        yield Finding(name, error.strerror or "cannot be read", State.WARNING, f"make {folder}")
        return
    value = f"have {usage.free / 2**30:.1f} GiB free, need {wanted_bytes / 2**30:.0f} GiB"
    if usage.free >= wanted_bytes:
        yield Finding(name, value, State.OK)
        return
    wanted = f"{wanted_bytes / 2**30:.0f} GiB"
    if str(folder).startswith("/dev/shm"):
        fix = f"mount -o remount,size={math.ceil((usage.used + wanted_bytes) / 2**30)}G /dev/shm, or docker run "
        fix += f"--shm-size; NCCL and data loaders share memory through it, {wanted} free is a good start"
    else:
        fix = f"free it up to {wanted}: checkpoints that cannot be written end a run"
    yield Finding(name, value, State.WARNING, fix)


def listen_findings(port: int | None, local_ranks: int, *, outbound_only: bool = False) -> Iterator[Finding]:
    """Whether the pinned ports, one for each rank here, can be listened on."""
    if outbound_only:
        value = "none has to be open to other sites, which this one dials (GEOCOMM_OUTBOUND_ONLY)"
        yield Finding("open ports", value, State.NOTE)
    if port is None:
        if outbound_only:
            return
        yield Finding("ports", "chosen by the kernel", State.NOTE, "behind a firewall, pin them: GEOCOMM_PORT")
        return
    last = port + local_ranks - 1
    name = f"port {port}" if last == port else f"ports {port} to {last}"
    if last > _TCP_RANGE[1]:
        yield Finding(name, f"beyond {_TCP_RANGE[1]}", State.BAD, "a lower GEOCOMM_PORT")
        return
    taken = {number: why for number in range(port, last + 1) if (why := _why_not_listen(number))}
    if not taken:
        yield Finding(name, "free", State.OK)
    for number, why in taken.items():
        fix = "another GEOCOMM_PORT"
        if why == errno.EADDRINUSE:
            fix = f"end what listens there (ss -ltnp 'sport = :{number}'), or {fix}"
        yield Finding(f"port {number}", os.strerror(why), State.BAD, fix)


def _why_not_listen(port: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError as error:
            return error.errno or errno.EIO
    return 0


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
