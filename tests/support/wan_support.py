"""What tests over the emulated WAN share: whether it is possible here, running a job, finding processes left behind."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from geocomm.lab.emulator.emulated_links import EmulatedWan, WanUnavailableError
from geocomm.lab.emulator.emulated_wan import WanReport, WanRun, check_wan
from support.warm_ranks import warm_ranks

REPOSITORY = Path(__file__).resolve().parents[2]
IMPORTS = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
"""PYTHONPATH of programs that import geocomm and this package, such as a test file that runs itself at the sites."""
_started: list[subprocess.Popen[str]] = []
PROGRAMS = Path(__file__).with_name("wan_site_programs.py")


@functools.cache
def why_no_wan() -> str | None:
    """Why this machine allows no emulated WAN; None where it does."""
    try:
        check_wan()
    except WanUnavailableError as error:
        return str(error)
    return None


def require_wan() -> None:
    """Skip the test where this machine forbids an emulated WAN; fail it instead if GEOCOMM_REQUIRE_WAN=1.

    All are skipped by one line for one reason, which pytest therefore tells once at its end, with their number.
    """
    reason = why_no_wan()
    if reason is None:
        return
    if os.environ.get("GEOCOMM_REQUIRE_WAN") == "1":
        pytest.fail(f"GEOCOMM_REQUIRE_WAN=1, but: {reason}")
    pytest.skip(reason)


@dataclass(frozen=True)
class Outcome:
    """What a finished run left."""

    status: int
    stdout: str
    stderr: str
    report: WanReport | None

    def values(self, name: str) -> list[str]:
        """What follows "name=" in the lines of stdout, in order."""
        return [line.split(f"{name}=", 1)[1] for line in self.stdout.splitlines() if f"{name}=" in line]


def program(*arguments: str) -> list[str]:
    """A command of wan_site_programs.py."""
    return [sys.executable, str(PROGRAMS), *arguments]


def warm_program(file: Path | str, *arguments: str) -> list[str]:
    """A command that runs a file of Python that imports torch, forked from what has imported it."""
    return [*warm_ranks().command(str(file)), *arguments]


def emulate(
    topology: EmulatedWan,
    command: Sequence[str],
    during: Callable[[WanRun], None] | None = None,
    timeout_s: float = 60,
    **options: Any,
) -> Outcome:
    """Run `command` at every site to its end; `during` is called while it runs."""
    options["environment"] = {**options.get("environment", os.environ), "PYTHONPATH": IMPORTS}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with WanRun(topology, command, stdout=out, stderr=err, **options) as run:
            if during is not None:
                during(run)
            status = run.wait(timeout_s)
            report = run.report()
        out.seek(0)
        err.seek(0)
        return Outcome(status, out.read(), err.read(), report)


def geocomm(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """The command line, as a user starts it."""
    command = subprocess.Popen(
        [sys.executable, "-m", "geocomm", *arguments],
        env=os.environ | {"PYTHONPATH": IMPORTS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    _started.append(command)
    return command


def kill_started() -> None:
    """After a test: end the commands that it left running because it failed. Their sites end with them."""
    while _started:
        command = _started.pop()
        if command.poll() is None:
            command.kill()
            command.communicate()


def processes_with(marker: str) -> list[int]:
    """The processes that have `marker` as one of their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if marker.encode() in arguments:
                found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
    """Return as soon as `condition` holds; fail the test if that takes longer than `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s} s: {what}")
        time.sleep(0.02)
