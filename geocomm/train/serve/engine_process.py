"""An engine's server as a child process: started, waited for, ended. No child outlives this process."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from geocomm.core.child_processes import ending_with_this

_STOP_SECONDS = 10.0
_PROBE_SECONDS = 2.0
_PAUSE_SECONDS = 0.2


class EngineEnded(Exception):
    """The engine ended or did not come up; the message says so in a line."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
        """Exit status for this process: not 0."""


class Stopped(Exception):
    """A signal has asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class StopSignals:
    """The SIGINT and SIGTERM that have come. They interrupt nothing: what waits looks here."""

    def __init__(self) -> None:
        self.came: list[int] = []

    @contextlib.contextmanager
    def noted(self) -> Generator[None]:
        """Inside of the block, which the main thread enters, both signals are noted here and do nothing else."""

        def note(number: int, frame: FrameType | None) -> None:
            self.came.append(number)

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class EngineProcess:
    """A running engine. What it prints goes to stderr."""

    def __init__(
        self, name: str, command: Sequence[str], variables: Mapping[str, str], folder: Path, stop: StopSignals
    ) -> None:
        """variables: of its environment, besides this process's own; folder: where it works. OSError: cannot start."""
        if shutil.which(command[0]) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
        self._name, self._stop = name, stop
        self._process = subprocess.Popen(
            ending_with_this(command),
            cwd=folder,
            env=os.environ | dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            process_group=0,  # Ctrl-C at the terminal comes once, from this process
        )

    def wait_ready(self, host: str, port: int, path: str, limit_s: float) -> None:
        """Return when the engine answers 200 on `path`. EngineEnded: it ended, or took longer than limit_s. Stopped."""
        deadline = time.monotonic() + limit_s
        while not _answers(host, port, path):
            if (status := self._process.poll()) is not None:
                raise self._ended(status, "before it was ready")
            if time.monotonic() > deadline:
                raise EngineEnded(f"{self._name} was not ready within {limit_s:g} s; see --start-timeout", 1)
            self._pause()

    def wait(self) -> EngineEnded:
        """Wait until it ends by itself, which it should not. Stopped: a signal came before."""
        while (status := self._process.poll()) is None:
            self._pause()
        return self._ended(status, "by itself")

    def end(self, number: int) -> None:
        """End it by signal `number`, and by SIGKILL if that takes more than ten seconds or another signal comes."""
        if self._process.poll() is None:
            came, deadline = len(self._stop.came), time.monotonic() + _STOP_SECONDS
            self._process.send_signal(number)
            while self._process.poll() is None and len(self._stop.came) == came and time.monotonic() < deadline:
                time.sleep(_PAUSE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # workers that it left behind, too
        self._process.wait()

    def _pause(self) -> None:
        if self._stop.came:
            raise Stopped(self._stop.came[0])
        time.sleep(_PAUSE_SECONDS)

    def _ended(self, status: int, when: str) -> EngineEnded:
        how = f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
        code = 128 - status if status < 0 else status or 1
        return EngineEnded(f"{self._name} ended {how} {when}; its last lines are above", code)


def _answers(host: str, port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=_PROBE_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
