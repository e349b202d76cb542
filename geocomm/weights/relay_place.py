"""A relay as a place that a stream is read from: `tls://host:port` of a `geocomm subscribe --listen`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Annotated, Any, TypeVar

from pydantic import Field
from typing_extensions import override

from geocomm.core.addresses import Address, AddressError
from geocomm.core.bad_input import BadInput
from geocomm.core.records import Record, Text, Whole
from geocomm.data.places import FilePlace, open_place
from geocomm.data.shard_stores import IN_FLIGHT
from geocomm.security.key_folder import Keys, KeysError
from geocomm.weights.stream_version import NEWEST
from geocomm.wire.dial import dial
from geocomm.wire.file_ranges import KEPT_S, RANGE_BYTES, SILENCE_S, RangeAnswer, line, next_answer
from geocomm.wire.greeting import Greeting, Purpose
from geocomm.wire.tls_stream import TlsStream

HELD_S = 1.0
"""How long a relay holds a question for a version that it has not got yet."""
_R = TypeVar("_R")


class StreamFileAsked(Record):
    """A range of a file of a stream."""

    path: Text
    start: Whole
    count: Annotated[int, Field(ge=0, le=RANGE_BYTES)]
    after: Whole | None = None
    """Of NEWEST: the answer waits for a newer version than this, for HELD_S at most."""


class RelayPlace(FilePlace):
    """The files of the stream that a relay follows. Used by any number of threads; the connections are kept."""

    writable = False

    def __init__(self, url: str, address: Address, keys: Keys) -> None:
        super().__init__(url)
        self._address, self._keys = address, keys
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock, self._is_closed = threading.Lock(), False
        self._idle: list[tuple[float, TlsStream]] = []
        self._ahead: list[asyncio.Task[None]] = []

    @override
    def names(self, below: str = "") -> list[str]:
        return []  # a relay tells of its newest version, and no reader needs more

    @override
    def size(self, path: str) -> int:
        return self._run(self._asked(path, 0, 0, bytearray()))

    @override
    def read(self, path: str, start: int = 0, count: int | None = None) -> bytes:
        content, size = bytearray(), start + 1
        while start + len(content) < size and (count is None or len(content) < count):
            most = RANGE_BYTES if count is None else min(RANGE_BYTES, count - len(content))
            size = self._run(self._asked(path, start + len(content), most, content))
        return bytes(content)

    @override
    def read_on(self, path: str, start: int, count: int, got: bytearray) -> None:
        self._run(self._asked(path, start + len(got), count - len(got), got))

    def await_newer(self, number: int) -> None:
        """Return once the relay has a newer version than this, or after HELD_S. FileNotFoundError: it has none."""
        self._run(self._asked(NEWEST, 0, 0, bytearray(), after=number))

    @override
    def close(self) -> None:
        """Close the connections, for good. Whoever waits for an answer gets none."""
        with self._lock:
            self._is_closed = True
            if self._loop is not None:
                asyncio.run_coroutine_threadsafe(self._end(), self._loop)

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)  # one that dials takes several turns of the loop
        for _, stream in self._idle:
            stream.close()
        asyncio.get_running_loop().stop()

    def _run(self, work: Coroutine[Any, Any, _R]) -> _R:
        """What work in the loop of the connections comes to. OSError; KeysError becomes PermissionError."""
        with self._lock:
            if self._is_closed:
                work.close()
                raise ConnectionAbortedError(f"{self.url} is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="geocomm-relay", daemon=True).start()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeysError as error:
            raise PermissionError(str(error)) from None
        except CancelledError:
            raise ConnectionAbortedError(f"{self.url} was closed meanwhile") from None
        except TimeoutError as error:
            raise TimeoutError(str(error) or "it has fallen silent") from None

    async def _asked(self, path: str, start: int, count: int, got: bytearray, after: int | None = None) -> int:
        """The file's size; the range is appended to `got` as it comes. FileNotFoundError: there is none."""
        stream = await self._connection()
        try:
            await stream.write(line(StreamFileAsked(path=path, start=start, count=count, after=after)))
            answer = await next_answer(stream, RangeAnswer, path)
            left = min(count, max(0, answer.bytes - start)) if answer.here else 0
            while left:
                async with asyncio.timeout(SILENCE_S):
                    piece = await stream.read_some(left)
                got += piece
                left -= len(piece)
        except BaseException:
            stream.close()
            raise
        self._idle.append((asyncio.get_running_loop().time(), stream))
        if not answer.here:
            raise FileNotFoundError(f"{self.url} has no {path}")
        return answer.bytes

    async def _connection(self) -> TlsStream:
        now = asyncio.get_running_loop().time()
        while self._idle:
            used, stream = self._idle.pop()
            if now - used < KEPT_S:
                return stream
            stream.close()
        if not self._ahead:  # frames come over all of them, and each takes round trips to open
            self._ahead = [asyncio.ensure_future(self._dial_ahead()) for _ in range(IN_FLIGHT - 1)]
        return await self._dialled()

    async def _dial_ahead(self) -> None:
        with suppress(OSError, KeysError):  # told where one is needed
            self._idle.append((asyncio.get_running_loop().time(), await self._dialled()))

    async def _dialled(self) -> TlsStream:
        greeting = Greeting(Purpose.WEIGHTS, bytes(16), 0, "weights")
        return (await dial(self._address, self._keys, greeting, readers=True))[0]


def open_source(url: str, keys: Keys | None) -> FilePlace:
    """What a source names. BadInput: it cannot be used."""
    scheme, found, rest = url.partition("://")
    if scheme != "tls" or not found:
        return open_place(url, url)
    if keys is None:
        raise BadInput(f"{url} needs keys: set GEOCOMM_KEYS, or --keys, to a folder of geocomm keys")
    try:
        return RelayPlace(url, Address.parse(rest), keys)
    except AddressError as error:
        raise BadInput(f"{url}: {error}") from None
