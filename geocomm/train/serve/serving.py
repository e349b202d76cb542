"""Serve a model folder: read the key that clients show, choose the engine, start its server with it, tell when it is
ready, end it with this process."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from geocomm.core.addresses import Address, is_any, is_loopback, listen_on
from geocomm.core.bad_input import BadInput
from geocomm.core.child_processes import ending_with_this
from geocomm.core.message_log import tell
from geocomm.group.membership.own_address import url_for_others
from geocomm.train.serve.engines import (
    HEALTH,
    ApiKey,
    Engine,
    FollowSettings,
    ModelFolder,
    check_name,
    choose_engine,
    default_name,
    launch,
    open_folder,
)

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


@dataclass(frozen=True)
class Serving:
    """What is served, and how."""

    folder: Path
    engine: Engine
    host: str
    port: int
    key_file: Path | None
    python: str
    """The interpreter that has the engine."""
    name: str | None
    """What clients call the model; None: as the folder."""
    start_timeout_s: float
    engine_arguments: Sequence[str] = ()
    """More, for the engine's own command line."""
    follow: FollowSettings | None = None
    """The stream whose weights it answers by; None: those of the folder."""


def serve(serving: Serving) -> int:
    """Serve until a signal or the engine's end; the exit status. Raises BadInput before anything was started."""
    folder = open_folder(serving.folder)
    name = check_name(serving.name or default_name(serving.folder))
    key = key_for(serving.host, serving.key_file)
    follows = serving.follow is not None
    engine = choose_engine(serving.engine, folder, serving.python, asks_key=key is not None, follows=follows)
    if follows and _BATCHING in serving.engine_arguments:
        raise BadInput(f"leave out {_BATCHING}: its requests are never all done, and --follow swaps between requests")
    stop = StopSignals()
    with stop.noted(), contextlib.ExitStack() as held:
        return _serve(serving, engine, folder, name, key, stop, held)


def _serve(
    serving: Serving,
    engine: Engine,
    folder: ModelFolder,
    name: str,
    key: ApiKey | None,
    stop: StopSignals,
    held: contextlib.ExitStack,
) -> int:
    """`held` ends what is begun here, last first."""
    address = (serving.host, serving.port)
    _check_free(*address)
    workplace = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="geocomm-serve-")))
    start = launch(engine, folder, name, serving.python, address, workplace, key, serving.follow)
    running = _start(engine, [*start.command, *serving.engine_arguments], start.variables, workplace, stop)
    held.callback(running.end, signal.SIGTERM)
    try:
        here = "127.0.0.1" if is_any(serving.host) else serving.host
        running.wait_ready(here, serving.port, HEALTH, serving.start_timeout_s)
        print(
            f"ready: {name} at {url_for_others(serving.host, serving.port)}, served by {engine}",
            _curl(serving, name),
            sep="\n",
        )
        sys.stdout.flush()
        ended = running.wait()
    except EngineEnded as error:
        ended = error
    except Stopped as stopped:
        running.end(signal.SIGTERM)  # of a SIGINT, servers print where they were
        return 128 + stopped.number
    tell("serve", str(ended))
    return ended.status


def _check_free(host: str, port: int) -> None:
    """Engines say it late, and in many lines."""
    try:
        listen_on(str(Address(host, port))).close()
    except OSError as error:
        raise BadInput(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another --port or --host"
        ) from None


def _start(
    engine: Engine, command: Sequence[str], variables: Mapping[str, str], workplace: Path, stop: StopSignals
) -> EngineProcess:
    try:
        return EngineProcess(engine, command, variables, workplace, stop)
    except OSError as error:
        raise BadInput(f"{command[0]} cannot be started: {error.strerror}") from None


def _curl(serving: Serving, name: str) -> str:
    """A line for a shell that asks for a completion; the key stays in its file."""
    body = json.dumps({"model": name, "prompt": "Once upon a time", "max_tokens": 32, "temperature": 0})
    key = "" if serving.key_file is None else f' -H "Authorization: Bearer $(cat {shlex.quote(str(serving.key_file))})"'
    url = f"{url_for_others(serving.host, serving.port)}/v1/completions"
    return f"curl {shlex.quote(url)} -H 'Content-Type: application/json'{key} -d {shlex.quote(body)}"


_BATCHING = "--continuous-batching"
_MAKE_ONE = "(umask 077; openssl rand -hex 32 > api.key)"


def key_for(host: str, path: Path | None) -> ApiKey | None:
    """The key in `path`; None without a path, which only a loopback `host` may do. Raises BadInput."""
    if path is not None:
        return ApiKey(read_key(path), path.absolute())
    if not is_loopback(host):
        raise BadInput(f"--host {host} is open to other machines: add --api-key-file api.key; make it with {_MAKE_ONE}")
    return None


def read_key(path: Path) -> str:
    """The key in a file that only its owner may read. Raises BadInput."""
    try:
        text, mode = path.read_text(encoding="ascii"), path.stat().st_mode
    except FileNotFoundError:
        raise BadInput(f"--api-key-file {path} is not there; make it with {_MAKE_ONE}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--api-key-file {path} cannot be read: {error}") from None
    if mode & 0o077:
        raise BadInput(f"--api-key-file {path} can be read by others (mode {mode & 0o777:o}); run: chmod 600 {path}")
    key = text.strip()
    if not re.fullmatch(r"[!-~]+", key):
        what = "is empty" if not key else "has more than one word"
        raise BadInput(f"--api-key-file {path} {what}; make it with {_MAKE_ONE}")
    return key
