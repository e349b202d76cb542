"""Files of fragments from other agents: by name and hash, in ranges, from several sources at once.

What has arrived gets its name only after its hash was looked at. `file_server` is the other end, and `file_ranges` how
both talk.
"""

from __future__ import annotations

import asyncio
import enum
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from geocomm.core.addresses import Address, AddressError
from geocomm.core.file_systems import put_in_place
from geocomm.core.message_log import CalmLog
from geocomm.core.patience import Waiting, comes
from geocomm.core.records import Record
from geocomm.elastic.files.file_server import FrameAsked, HeldState, StateAsked, StatesAnswer, StatesAsked
from geocomm.elastic.files.fragment_store import FragmentStore, file_digest, file_hash, make_room
from geocomm.elastic.journal.messages import Wanted
from geocomm.security.key_folder import Keys, KeysError
from geocomm.wire.dial import dial
from geocomm.wire.file_ranges import (
    KEPT_S,
    MAX_FILE_BYTES,
    MAX_LINE_BYTES,
    PIECE_BYTES,
    RANGE_BYTES,
    SILENCE_S,
    RangeAnswer,
    line,
    next_answer,
)
from geocomm.wire.greeting import Greeting, Purpose
from geocomm.wire.tls_stream import TlsStream

CONNECTIONS = 8
"""One file is fetched over so many, to all its sources together: what a long line with losses needs."""
MOST_AT_A_TIME = 8
"""Files that an agent gets at once."""
_LOOK_S = 2.0
"""Between two looks whether a wait is to be said."""
_STALLED_S = 1.5
"""A range of which nothing has come for this time is asked of another source too."""
_COMPLAINT_S = 60.0
_FAR_AFTER_S = 5.0
"""A file that the sources of the own region do not bring within this time is asked of the others too."""
_NEAR_BYTES_PER_S = 10e6
"""But for a larger one that comes faster than this. Chosen: a tenth of what a gigabit carries."""

_R = TypeVar("_R", bound=Record)


class Outcome(enum.Enum):
    """How a fetch has ended."""

    HERE = "here"
    ABSENT = "absent"
    """All sources that answered say that they have not got it, and one answered at least."""
    BUSY = "busy"
    """It is there, at sites that give states to as many others as they may."""
    FAILED = "failed"


class Fetcher:
    """Gets files from other agents into a store."""

    def __init__(
        self,
        store: FragmentStore,
        keys: Keys,
        log: Callable[[str], None],
        most_frame_bytes: Callable[[], int] = lambda: MAX_FILE_BYTES,
        disk_failed: Callable[[int], None] = lambda size: None,
        near: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """most_frame_bytes: of this run's model, as it is known now: for more than that, no room is made. disk_failed:
        is called where the disk does not take a file of so many bytes. near: the sources of the own region now, which
        are asked first."""
        self._store, self._keys, self._log, self._most_frame_bytes = store, keys, log, most_frame_bytes
        self._disk_failed, self._near = disk_failed, near
        self._complain = CalmLog(log, _COMPLAINT_S)  # any site may ask for what cannot be
        self._under_way: dict[Path, asyncio.Task[Outcome]] = {}
        self._idle: dict[str, dict[_Connection, asyncio.TimerHandle]] = {}
        """By agent: connections on which nothing is under way, and what closes each in time."""
        # A site that comes back wants many frames: more connections at once would be a flood to the others' doors.
        self._turns = asyncio.Semaphore(MOST_AT_A_TIME)
        self._turns_of_states = asyncio.Semaphore(MOST_AT_A_TIME)
        """These wait for no frames: a state makes frames needless."""

    async def frame(self, wanted: Wanted, sources: Sequence[str], proxy: str | None = None) -> Outcome:
        """Have a frame on the disk, from `sources` (host:port), else through the agent at `proxy`. Who asks for the
        same file meanwhile waits for the same transfer."""
        path = self._store.frame_path(**wanted.named)
        if not self._fits(path, wanted.bytes, self._most_frame_bytes()):
            return Outcome.FAILED

        async def get() -> Outcome:
            outcome = Outcome.FAILED
            for through, addresses in ((False, sources), (True, [proxy] if proxy else [])):
                if addresses and outcome is not Outcome.HERE:
                    asked = FrameAsked(**wanted.named, bytes=wanted.bytes, offset=0, proxy=through)
                    file = _WantedFile(path, wanted.bytes, asked, lambda part: file_hash(part) == wanted.frame)
                    now = await self._file(file, addresses)
                    # A proxy that cannot be asked takes nothing back of what the sources have said.
                    outcome = outcome if now is Outcome.FAILED else now
            return outcome

        return await self._once(path, get, self._turns)

    async def state(self, fragment: int, held: HeldState, sources: Sequence[str]) -> Outcome:
        """Have a state on the disk, from sources that said that they hold it."""
        path = self._store.state_path(fragment, held.version)
        if not self._fits(path, held.bytes, 2 * self._most_frame_bytes()):  # anchor and momentum, as they are
            return Outcome.FAILED
        asked = StateAsked(fragment=fragment, version=held.version, offset=0)
        file = _WantedFile(path, held.bytes, asked, lambda part: file_digest(part, held.version) == held.digest)

        async def get() -> Outcome:
            outcome = await self._file(file, sources)
            if outcome is Outcome.HERE:
                self._store.keep_digest(fragment, held.version, held.digest)
            return outcome

        return await self._once(path, get, self._turns_of_states)

    async def states(self, fragment: int, source: str, head: int, term: int) -> tuple[HeldState, ...]:
        """The states of a fragment that an agent has, none if its journal ends before entry `head`, or in a lower term.
        OSError, KeysError: it cannot be asked."""
        async with self._turns_of_states:
            connection = await self._connection(source)
            try:
                await connection.stream.write(line(StatesAsked(fragment=fragment, head=head, term=term)))
                what = f"its states of fragment {fragment}"
                answer = await self._answer(connection, StatesAnswer, what, 1 << 20)
            except BaseException:
                connection.stream.close()
                raise
        self._keep(connection)
        return answer.states

    def _fits(self, path: Path, size: int, most: int) -> bool:
        if size > most:
            self._complain(f"{path.name} is not fetched: {size} bytes, and one of this model has {most} at most")
        return size <= most

    async def _once(self, path: Path, get: Callable[[], Awaitable[Outcome]], turns: asyncio.Semaphore) -> Outcome:
        if path.exists():
            return Outcome.HERE
        task = self._under_way.get(path)
        if task is None:

            async def work() -> Outcome:
                async with turns:
                    return await get()

            task = self._under_way[path] = asyncio.create_task(work())
            task.add_done_callback(lambda _: self._under_way.pop(path, None))
        return await asyncio.shield(task)

    async def _file(self, file: _WantedFile, sources: Sequence[str]) -> Outcome:
        try:
            return await self._into(self._store.new_part(file.path), file, sources)
        except OSError as error:  # of the disk
            self._complain(f"cannot keep {file.path.name}: {error.strerror or error}")
            self._disk_failed(file.size)
            return Outcome.FAILED

    async def _into(self, part: Path, file: _WantedFile, sources: Sequence[str]) -> Outcome:
        path, transfer = file.path, _Transfer(file, part)
        try:
            await asyncio.to_thread(transfer.open)
            outcome = await self._from_all(transfer, sources)
            if outcome is not Outcome.HERE:
                return outcome
            if await asyncio.to_thread(file.fits, part):
                await asyncio.to_thread(put_in_place, part, path)
                return Outcome.HERE
            if len(sources) == 1:
                self._log(f"{sources[0]} gave other bytes than those of {path.name}")
                return Outcome.FAILED
            for source in sources:  # one of them gave wrong bytes: each by itself shows which
                if await self._file(file, [source]) is Outcome.HERE:
                    return Outcome.HERE
            return Outcome.FAILED
        finally:
            transfer.close()
            part.unlink(missing_ok=True)

    async def _from_all(self, transfer: _Transfer, sources: Sequence[str]) -> Outcome:
        """All ranges, each from the source that is free first; what one does not finish, another takes over. Sources
        of other regions begin where those of the own one have ended without all, or are slow."""
        near = [source for source in sources if source in self._near()]
        later = [source for source in sources if source not in near] if near else []
        workers = self._workers(transfer, near or sources)
        ends, under_way = set[Outcome](), set(workers)
        try:
            # A source that cannot be reached is not waited for once the others have given all.
            while (under_way or later) and not transfer.complete:
                if later and (not under_way or transfer.is_slow()):
                    more, later = self._workers(transfer, later), []
                    workers += more
                    under_way |= {*more}
                limit_s = _FAR_AFTER_S if later else None
                ended, under_way = await asyncio.wait(under_way, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
                ends |= {worker.result() for worker in ended}
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        if transfer.complete:
            return Outcome.HERE
        if Outcome.BUSY in ends:
            return Outcome.BUSY
        answered = ends - {Outcome.FAILED}
        return Outcome.ABSENT if answered == {Outcome.ABSENT} else Outcome.FAILED

    def _workers(self, transfer: _Transfer, sources: Sequence[str]) -> list[asyncio.Task[Outcome]]:
        each = max(1, min(CONNECTIONS, len(transfer.ranges)) // max(1, len(sources)))
        return [asyncio.create_task(self._from_one(transfer, source)) for source in sources for _ in range(each)]

    async def _from_one(self, transfer: _Transfer, source: str) -> Outcome:
        """Ranges over one connection, until none is left."""
        connection = None
        try:
            while not transfer.complete:
                # A connection before a range, which another may give meanwhile.
                connection = connection or await self._connection(source)
                if (offset := transfer.take()) is None:
                    self._keep(connection)  # other files may want it meanwhile
                    connection = None
                    await transfer.wait_for_range()
                    continue
                try:
                    await connection.stream.write(line(transfer.file.asked.model_copy(update={"offset": offset})))
                    answer = await self._answer(connection, RangeAnswer, transfer.file.path.name)
                    if answer.busy:
                        self._keep(connection)
                        connection = None
                        return Outcome.BUSY
                    if not answer.here or answer.bytes != transfer.file.size:
                        return Outcome.ABSENT
                    await self._take_range(transfer, connection, offset)
                finally:
                    transfer.release(offset)
            if connection is not None:
                self._keep(connection)
                connection = None
            return Outcome.HERE
        except (OSError, KeysError) as error:
            if transfer.disk_failed:
                raise
            self._log(f"fetching from {source}: {str(error) or 'silent'}")
            return Outcome.FAILED
        finally:
            if connection is not None:
                connection.stream.close()

    async def _answer(self, connection: _Connection, kind: type[_R], what: str, most: int = MAX_LINE_BYTES) -> _R:
        """As `next_answer`. The wait for it is said."""
        loop, waiting = asyncio.get_running_loop(), Waiting(self._log)

        def tell() -> None:
            nonlocal timer
            waiting.tell(lambda: f"the agent at {connection.source}, which is asked for {what}")
            timer = loop.call_later(_LOOK_S, tell)

        timer = loop.call_later(_LOOK_S, tell)
        try:
            answer = await next_answer(connection.stream, kind, what, most)
        finally:
            timer.cancel()
        connection.used_at = loop.time()
        return answer

    def _keep(self, connection: _Connection) -> None:
        """Leave a connection on which nothing is under way to a later transfer."""
        close_at = connection.used_at + KEPT_S  # not from now on: it may have found no range to ask for
        closing = asyncio.get_running_loop().call_at(close_at, self._close_idle, connection)
        self._idle.setdefault(connection.source, {})[connection] = closing

    def _close_idle(self, connection: _Connection) -> None:
        """Nobody has used a connection in time."""
        del self._idle[connection.source][connection]
        connection.stream.close()

    async def _connection(self, source: str) -> _Connection:
        """One that an earlier transfer has left, else a new one: across the world that takes a second."""
        if idle := self._idle.get(source):
            connection, closing = idle.popitem()
            closing.cancel()
            return connection
        return _Connection(source, await self._dial(source), asyncio.get_running_loop().time())

    async def _take_range(self, transfer: _Transfer, connection: _Connection, offset: int) -> None:
        at, end = offset, min(offset + RANGE_BYTES, transfer.file.size)
        while at < end:
            async with asyncio.timeout(SILENCE_S):
                piece = await connection.stream.read_exactly(min(PIECE_BYTES, end - at))
            connection.used_at = asyncio.get_running_loop().time()
            transfer.write(offset, at, piece)
            at += len(piece)
        transfer.done.add(offset)

    async def _dial(self, source: str) -> TlsStream:
        greeting = Greeting(Purpose.FETCH, bytes(16), 0, "fetch")
        try:
            address = Address.parse(source)
        except AddressError as error:  # a site has said that it can be reached there
            raise ConnectionError(str(error)) from None
        stream, _ = await dial(address, self._keys, greeting)
        return stream


@dataclass(eq=False)
class _Connection:
    """One to another agent."""

    source: str
    """Its host:port."""
    stream: TlsStream
    used_at: float
    """When it was made, or something last came over it, by the loop's clock."""


@dataclass(frozen=True)
class _WantedFile:
    """A file that is to be here."""

    path: Path
    size: int
    asked: FrameAsked | StateAsked
    """Its first range."""
    fits: Callable[[Path], bool]
    """Whether what has come is that file."""


class _Transfer:
    """A file that arrives in ranges."""

    def __init__(self, file: _WantedFile, part: Path) -> None:
        self.file = file
        self.ranges = list(range(0, file.size, RANGE_BYTES)) or [0]
        self.done: set[int] = set()
        self.disk_failed = False
        self._part = part
        self._free = self.ranges[::-1]
        self._moved: dict[int, float] = {}  # when a piece came last of those that somebody is at
        self._news = asyncio.Event()
        self._descriptor = -1
        self._begun_at, self._taken_bytes = time.monotonic(), 0

    @property
    def complete(self) -> bool:
        return len(self.done) == len(self.ranges)

    def is_slow(self) -> bool:
        """Whether it has been under way for _FAR_AFTER_S, at a lower rate than _NEAR_BYTES_PER_S."""
        taken_s = time.monotonic() - self._begun_at
        return taken_s >= _FAR_AFTER_S and self._taken_bytes < taken_s * _NEAR_BYTES_PER_S

    def open(self) -> None:
        """Make the file. OSError where there is no room for it."""
        self._descriptor = make_room(self._part, self.file.size)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def take(self) -> int | None:
        """The offset of a range that nobody is at, or that came no further; None: others are at what is left."""
        while self._free:
            if (offset := self._free.pop()) not in self.done:
                self._moved[offset] = time.monotonic()
                return offset
        if (offset := next(self._stalled(), None)) is not None:
            self._moved[offset] = time.monotonic()
        return offset

    async def wait_for_range(self) -> None:
        """Returns once there is one to take, or all are here."""
        while not self.complete and not self._free and next(self._stalled(), None) is None:
            self._news.clear()
            await comes(self._news, _STALLED_S / 2)

    def _stalled(self) -> Iterator[int]:
        now = time.monotonic()
        return (offset for offset, at in self._moved.items() if now - at >= _STALLED_S and offset not in self.done)

    def release(self, offset: int) -> None:
        """Leave a range: to others, unless it is done."""
        self._moved.pop(offset, None)
        if offset not in self.done:
            self._free.append(offset)
        self._news.set()

    def write(self, offset: int, at: int, content: bytes) -> None:
        """A part of the range at `offset`."""
        self._moved[offset] = time.monotonic()
        self._taken_bytes += len(content)
        try:
            os.pwrite(self._descriptor, content, at)
        except OSError:
            self.disk_failed = True
            raise
