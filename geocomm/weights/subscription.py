"""What `geocomm subscribe` does: keeps a folder at the newest version of a stream, and gives the stream to others."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from geocomm.core.addresses import listen_on
from geocomm.core.bad_input import BadInput
from geocomm.core.errors import DataError
from geocomm.core.loop_in_thread import in_a_loop
from geocomm.core.message_log import CalmLog
from geocomm.core.patience import Waiting
from geocomm.security.key_folder import Keys
from geocomm.weights.reader import StreamFollower, frames_beside
from geocomm.weights.relay import StreamRelay
from geocomm.weights.relay_place import HELD_S, open_source
from geocomm.weights.stream_sources import StreamSources
from geocomm.weights.weight_folder import WeightFolder
from geocomm.wire.doorway import raise_descriptor_limit

_CALM_S = 30.0
_LOOK_S = 0.2
_STOP_S = 10.0


@dataclass(frozen=True)
class SubscribeSettings:
    """What the command was told."""

    sources: Sequence[str]
    into: Path
    then: str | None
    listen: str | None
    keys: Keys | None
    publisher: str
    rate: float | None
    every_s: float
    wait_s: float
    once: bool
    model_files: Path | None


class Subscription:
    """Follows a stream until it is stopped. BadInput: it cannot begin."""

    def __init__(self, settings: SubscribeSettings, say: Callable[[str], None], warn: Callable[[str], None]) -> None:
        self._settings, self._say, self._warn = settings, say, warn
        self._complain = CalmLog(warn, _CALM_S)
        self._stop = threading.Event()
        self._ended_by: signal.Signals | None = None
        if settings.listen is not None and settings.keys is None:
            raise BadInput("--listen needs keys: set GEOCOMM_KEYS, or --keys, to a folder of geocomm keys")
        places = [open_source(url, settings.keys) for url in settings.sources]
        self._folder = WeightFolder(settings.into, settings.model_files)
        self._sources = StreamSources(
            places,
            frames_beside(settings.into),
            keys=settings.keys,
            publisher=settings.publisher,
            rate=settings.rate,
            wait_s=settings.wait_s,
        )
        self._follower = StreamFollower(self._sources, self._folder)

    def run(self) -> signal.Signals | None:
        """Return the signal that stopped it; with `once`, None at the newest version. DataError: that cannot be had."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._asked_to_end)
        listen, keys = self._settings.listen, self._settings.keys
        with ExitStack() as held:
            held.callback(self._follower.close)
            if listen is not None and keys is not None:
                held.enter_context(self._given_out(listen, keys))
            self._follow()
        return self._ended_by

    def _asked_to_end(self, number: int, _: object) -> None:
        self._ended_by = signal.Signals(number)
        self._stop.set()
        self._sources.stop()  # what waits for a source need not

    def _follow(self) -> None:
        if (there := self._folder.version) is not None:
            self._say(f"{self._settings.into} is version {there.number} of the weights")
            self._then()  # an earlier process may have died before it could
        told_bytes = 0
        while not self._stop.is_set():
            try:
                limit_s = math.inf if self._folder.version is None else None
                if self._follower.update(self._settings.wait_s if self._settings.once else limit_s):
                    fetched = self._sources.fetched_bytes  # by a relay also before, where a reader was ahead of it
                    self._tell(self._follower.took_s, fetched - told_bytes)
                    told_bytes = fetched
                if self._settings.once:
                    return
            except DataError as error:
                if self._stop.is_set():
                    break
                if self._settings.once:
                    raise
                at = f"stays at version {self._folder.version.number}" if self._folder.version else "has no version"
                self._complain(f"{self._settings.into} {at}: {error}")
            self._stop.wait(max(0.0, self._settings.every_s - HELD_S))
            self._sources.await_newer(self._folder.version.number if self._folder.version else 0)

    def _tell(self, seconds: float, fetched: int) -> None:
        version = self._folder.version
        if version is None:
            return
        step = "" if version.step is None else f" (step {version.step})"
        self._say(
            f"{self._settings.into} is version {version.number}{step} of the weights: {fetched / 1e6:.3f} MB, "
            f"{seconds:.1f} s"
        )
        # A relay keeps what another reader may need: all from the anchor before the newest one on.
        self._sources.forget_before(version.anchors[0] if self._settings.listen else version.number + 1)
        self._then()

    def _then(self) -> None:
        command, version = self._settings.then, self._folder.version
        if command is None or version is None:
            return
        told = {"WEIGHTS_FOLDER": str(self._settings.into.absolute()), "WEIGHTS_VERSION": str(version.number)}
        waiting = Waiting(self._warn)
        with subprocess.Popen(command, shell=True, env=os.environ | told, process_group=0) as process:
            while process.poll() is None and not self._stop.wait(_LOOK_S):
                waiting.tell(lambda: f"the command of --then (process {process.pid})")
            for number in (signal.SIGTERM, signal.SIGKILL) if process.poll() is None else ():
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, number)
                    process.wait(_STOP_S)
                    break
        if process.returncode:
            self._warn(f"the command of --then ended with status {process.returncode} for version {version.number}")

    @contextmanager
    def _given_out(self, listen: str, keys: Keys) -> Generator[None]:
        """Others may get the stream meanwhile. BadInput: not at this address."""
        raise_descriptor_limit()
        try:
            listener = listen_on(listen if not listen.startswith(":") else f"[::]{listen}")
        except (OSError, ValueError) as error:
            raise BadInput(f"--listen {listen}: {error}") from None
        self._say(f"gives out the stream at tls://…:{listener.getsockname()[1]}")
        with in_a_loop(StreamRelay(self._sources, keys, CalmLog(self._warn, _CALM_S)).serve(listener)):
            yield
