"""Networks of several machines on this one: namespaces with their own addresses, routes, names, NAT and firewalls."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from support.wan_support import IMPORTS

_numbers = itertools.count()
_ETC = Path("/etc/netns")


class NetSpaces:
    """Machines by name, each a network namespace with loopback, which end with this object's context."""

    def __init__(self) -> None:
        self._prefix = f"geocomm-{os.getpid()}-{next(_numbers)}"
        self._spaces: list[str] = []
        self._started: list[subprocess.Popen[str]] = []

    def add(self, name: str, hosts: str = "", home: Path | None = None) -> None:
        """A machine. hosts: lines of its /etc/hosts after that of localhost; no name server answers there. home: of
        root there, in place of the usual one."""
        space = self._space(name)
        self._spaces.append(space)
        _run("ip", "netns", "add", space)
        etc = _ETC / space
        etc.mkdir(parents=True)
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{hosts}\n")
        (etc / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        if home is not None:
            users = Path("/etc/passwd").read_text().splitlines()
            others = [line for line in users if not line.startswith("root:")]
            (etc / "passwd").write_text("\n".join([f"root:x:0:0::{home}:/bin/sh", *others, ""]))
        self.ip(name, "link set lo up")

    def link(self, left: str, right: str, *addresses: tuple[str, str]) -> list[str]:
        """A line between two machines, with pairs of addresses such as ("10.0.0.1/24", "10.0.0.2/24"). Returns the
        interfaces."""
        ends = [f"v{next(_numbers)}-{name}"[:15] for name in (left, right)]
        _run("ip", "link", "add", "name", ends[0], "netns", self._space(left), "type", "veth", "peer", "name", ends[1],
             "netns", self._space(right))  # fmt: skip
        for name, end, own in ((left, ends[0], 0), (right, ends[1], 1)):
            # Packets as they would be on a wire: what is too long is seen as such.
            self.ip(name, f"link set {end} up gso_max_segs 1")
            for pair in addresses:
                self.ip(name, f"address add {pair[own]} dev {end}" + " nodad" * (":" in pair[own]))
        return ends

    def ip(self, name: str, words: str) -> None:
        """Run `ip` there."""
        _run("ip", "-n", self._space(name), *words.split())

    def forward(self, name: str, *rules: str) -> None:
        """The machine forwards packets, with these rules of nftables."""
        for setting in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            self.check(name, "sysctl", "-qw", f"{setting}=1")
        for rule in rules:
            self.check(name, "nft", rule)

    def start(self, name: str, *command: str, hostname: str = "", **environment: str) -> subprocess.Popen[str]:
        """A program there, in a session of its own. hostname: the machine's own name."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', hostname] if hostname else []
        process = subprocess.Popen(
            ["ip", "netns", "exec", self._space(name), *named, *command],
            env=os.environ | {"PYTHONPATH": IMPORTS, "OMP_NUM_THREADS": "1"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def geocomm(self, name: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """The command there, as a user starts it."""
        return self.start(name, sys.executable, "-m", "geocomm", *arguments, **options)

    def check(self, name: str, *command: str) -> None:
        """A short program there, which has to succeed."""
        _run("ip", "netns", "exec", self._space(name), *command)

    def is_listening(self, name: str, port: int) -> bool:
        """Whether something listens at a TCP port there."""
        command = ["ip", "netns", "exec", self._space(name), "ss", "-Htln", f"sport = :{port}"]
        return bool(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    def kill(self, name: str) -> None:
        """Everything there, as when the machine loses power."""
        pids = subprocess.run(["ip", "netns", "pids", self._space(name)], capture_output=True, text=True, check=True)
        for pid in pids.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def close(self) -> None:
        """End what still runs there, and the machines."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        for space in self._spaces:
            self.kill(space.removeprefix(f"{self._prefix}-"))
            subprocess.run(["ip", "netns", "del", space], check=False)
            shutil.rmtree(_ETC / space, ignore_errors=True)

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"


@contextlib.contextmanager
def net_spaces(*, nat: bool = False) -> Generator[NetSpaces]:
    """Machines for a test; it is skipped where they cannot be made. nat: with the rules of nftables."""
    for program in ("ip", "unshare", *(["nft"] if nat else [])):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if os.geteuid() != 0 or subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True).returncode:
        pytest.skip("only root makes network namespaces with names")
    spaces = NetSpaces()
    try:
        yield spaces
    finally:
        spaces.close()


def two_nats(nets: NetSpaces, *, hairpin: bool = False) -> None:
    """Machines a and b with one private address, each behind a NAT that forwards two ports of its outer address,
    198.51.100.1 or .2. hairpin: also for who dials that from inside."""
    for name in ("a", "na", "nb", "b"):
        nets.add(name)
    nets.link("na", "nb", ("198.51.100.1/24", "198.51.100.2/24"))
    inside = "" if hairpin else "ip saddr != 10.0.0.0/24 "
    for name, outer in (("a", "198.51.100.1"), ("b", "198.51.100.2")):
        nets.link(name, f"n{name}", ("10.0.0.5/24", "10.0.0.1/24"))
        nets.ip(name, "route add default via 10.0.0.1")
        nets.forward(
            f"n{name}",
            "add table ip nat",
            "add chain ip nat in { type nat hook prerouting priority -100; }",
            "add chain ip nat out { type nat hook postrouting priority 100; }",
            f"add rule ip nat in {inside}ip daddr {outer} tcp dport {{ 29400, 29600 }} dnat to 10.0.0.5",
            f"add rule ip nat out ip saddr 10.0.0.0/24 snat to {outer}",
        )


def outcome(process: subprocess.Popen[str], limit_s: float = 60) -> tuple[int, str]:
    """Exit status, and what it said."""
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"not over within {limit_s} s: {out}{err}")
    return process.returncode, out + err


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
