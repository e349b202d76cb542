"""Serve a model folder: read the key that clients show, choose the engine, start its server with it, tell when it is
ready, end it with this process."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from geocomm.core.addresses import Address, is_any, is_loopback, listen_on
from geocomm.core.bad_input import BadInput
from geocomm.core.message_log import tell
from geocomm.group.membership.own_address import url_for_others
from geocomm.train.serve.engine_process import EngineEnded, EngineProcess, Stopped, StopSignals
from geocomm.train.serve.engines import HEALTH, ApiKey, Engine, FollowSettings, choose_engine, launch
from geocomm.train.serve.model_folder import ModelFolder, check_name, default_name, open_folder


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
