"""The relay: gives out the stream that it follows, and gets what it has not got from its own sources first.

So each frame crosses the line to a region once, however many readers there are in it, and one that begins there costs
nothing of that line.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pydantic import ValidationError

from geocomm.core.file_systems import write_whole
from geocomm.core.records import line_of
from geocomm.data.places import Folder, error_line
from geocomm.security.key_folder import Identity, Keys
from geocomm.weights.relay_place import HELD_S, StreamFileAsked
from geocomm.weights.stream_sources import StreamSources
from geocomm.weights.stream_version import NEWEST, StreamFile, hint_of
from geocomm.wire.doorway import Doorway
from geocomm.wire.file_ranges import RangeAnswer, give_range, let_ask, line, next_question, while_alive
from geocomm.wire.greeting import Greeting, ProtocolError, Purpose, SessionRefused
from geocomm.wire.tls_stream import TlsStream

AT_ONCE = 32
"""Files that are got from the sources."""
_FRESH_S = 1.0
"""How long an answer about the newest version holds for others who ask."""


class StreamRelay:
    """Gives out what `sources` have. Readers of the job may come, and its sites."""

    def __init__(self, sources: StreamSources, keys: Keys, log: Callable[[str], None]) -> None:
        self._sources, self._keys, self._log = sources, keys, log
        self._threads = ThreadPoolExecutor(AT_ONCE, "geocomm-relay")
        # What it knew before it started again: its sources may be away.
        self._newest = hint_of(Folder(str(sources.folder), sources.folder))
        self._asked_at = -_FRESH_S
        self._awaiting: asyncio.Future[None] | None = None
        """A newer version of the sources, while somebody wants one."""

    async def serve(self, listener: socket.socket) -> None:
        """Answer until cancelled."""
        try:
            await Doorway(listener, self._keys, self._answer, self._log, readers=True).serve()
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, stream: TlsStream, greeting: Greeting, peer: Identity) -> None:
        if greeting.purpose is not Purpose.WEIGHTS:
            raise SessionRefused("this is a relay of weights, for geocomm subscribe and WeightReader")
        await let_ask(stream)
        loop = asyncio.get_running_loop()
        while True:
            said = await next_question(stream)
            try:
                asked = StreamFileAsked.model_validate_json(said)
            except ValidationError as error:
                raise ProtocolError(f"not a question for a stream's files: {error.errors()[0]['msg']}") from None

            if asked.path != NEWEST and StreamFile.of(asked.path) is None:
                await stream.write(line(RangeAnswer(here=False, bytes=0)))
                continue
            path = self._sources.folder / asked.path
            if asked.path == NEWEST and asked.after is not None:
                await self._await_newer(asked.after)
            # What is here is given also while others wait for a source that does not answer.
            threads = None if asked.path != NEWEST and path.exists() else self._threads
            if await while_alive(stream, loop.run_in_executor(threads, self._get, asked.path, peer.site)):
                await give_range(stream, path, asked.start, asked.count)
            else:
                await stream.write(line(RangeAnswer(here=False, bytes=0)))

    async def _await_newer(self, number: int) -> None:
        """Return once there is a newer version than this to tell of, after HELD_S at the latest."""
        loop = asyncio.get_running_loop()
        until = loop.time() + HELD_S
        while self._number <= number and loop.time() < until:
            if self._awaiting is None or self._awaiting.done():
                self._awaiting = loop.run_in_executor(self._threads, self._look_once_newer)
            await asyncio.wait([self._awaiting], timeout=until - loop.time())

    @property
    def _number(self) -> int:
        return 0 if self._newest is None else self._newest.number

    def _look_once_newer(self) -> None:
        self._sources.await_newer(self._number)
        self._asked_at = -_FRESH_S
        self._look()

    def _get(self, path: str, name: str) -> bool:
        """Have a file in the folder; whether it can be had, and by the keys of this name: frames are weights."""
        try:
            if (file := StreamFile.of(path)) is None:
                self._look()
            elif not file.number:
                self._sources.layout(file.sha256)
            else:
                version = self._sources.version(file.number)
                if file.sha256:
                    frame = version.frames.get(file.sha256)
                    if frame is None or not version.lets_read(name):
                        return False
                    version.require_fit(self._sources.layout(version.layout))
                    self._sources.frame(file.number, frame)
        except OSError as error:  # DataError is one
            self._log(f"{name} asked for {path}: {error_line(error)}")
            return False
        return True

    def _look(self) -> None:
        if time.monotonic() - self._asked_at < _FRESH_S:
            return
        self._asked_at = time.monotonic()
        try:
            newest = self._sources.newest()
            if newest is not None and newest != self._newest:
                write_whole(self._sources.folder / NEWEST, line_of(newest).encode())
                self._newest = newest
        except OSError as error:
            given = f"version {self._number}" if self._newest else "no version"
            self._log(f"this relay gives out {given}: {error_line(error)}")
