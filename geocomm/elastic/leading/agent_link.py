"""The connection between an agent and its leader: JSON lines over TLS, which an empty line keeps alive.

Both ends give a connection up after SILENCE_S without a byte. The agent dials again at once, then every second.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator

from geocomm.core.addresses import Address
from geocomm.core.patience import Waiting, pauses, until_one_ends
from geocomm.elastic.journal.entries import BadLineError
from geocomm.elastic.journal.message_lines import MAX_LINE_BYTES
from geocomm.security.key_folder import Keys, KeysError
from geocomm.wire.dial import dial
from geocomm.wire.greeting import Greeting, ProtocolError, Purpose, SessionRefused
from geocomm.wire.tls_stream import TlsStream

BEAT_S = 3.0
SILENCE_S = 9.0
_PAUSES_S = (0.1, 1.0)
_LEAST_WATCH_S = 0.01
_MAX_UNSENT_BYTES = 16 << 20
_SEND_BYTES = 64 * 1024


class LineStream:
    """Lines both ways over one TLS connection, which belongs to it. Used in one event loop."""

    def __init__(self, stream: TlsStream) -> None:
        self._stream = stream
        self._unsent: collections.deque[bytes | Iterator[str]] = collections.deque()
        self._unsent_bytes = 0
        self._news = asyncio.Event()
        self._ending = False
        self._heard_at = self._said_at = 0.0
        self._writes_since: float | None = None

    @property
    def own_host(self) -> str:
        """The address of this end."""
        return self._stream.own_host

    def say(self, line: str) -> None:
        """Send a line, of MAX_LINE_BYTES at most, after those before it."""
        content = line.encode() + b"\n"
        self._unsent.append(content)
        self._unsent_bytes += len(content)
        self._news.set()

    def say_all(self, lines: Iterator[str]) -> None:
        """Send these lines, which are made as the peer takes them: they may be many."""
        self._unsent.append(lines)
        self._news.set()

    def end(self) -> None:
        """Close once what was said is sent."""
        self._ending = True
        self._news.set()

    async def carry(self, take: Callable[[bytes], None]) -> None:
        """Move lines until the connection ends. ConnectionError, TimeoutError: it was lost. ProtocolError: the peer
        sent what is no line, or `take` raised BadLineError."""
        try:
            await until_one_ends(self._send(), self._read(take), self._watch())
        finally:
            self._stream.close()

    async def _watch(self) -> None:
        """Say an empty line where nothing else is said. TimeoutError: the peer has been silent, or takes nothing. One
        timer for all: one a line would cost more than the line."""
        clock = asyncio.get_running_loop().time
        self._heard_at = self._said_at = clock()
        while True:
            now = clock()
            idle = now - min(self._heard_at, now if self._writes_since is None else self._writes_since)
            if idle >= SILENCE_S:
                raise TimeoutError
            if now - self._said_at >= BEAT_S:
                self._said_at = now
                self.say("")
            await asyncio.sleep(max(_LEAST_WATCH_S, min(SILENCE_S - idle, BEAT_S - (now - self._said_at))))

    async def _send(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            self._news.clear()
            if self._unsent_bytes > _MAX_UNSENT_BYTES:
                raise ConnectionAbortedError("the peer does not take what is sent to it")
            if content := self._next():
                self._said_at = self._writes_since = clock()  # a peer that reads takes a little at least
                await self._stream.write(content)
                self._writes_since = None
                await asyncio.sleep(0)
            elif self._ending:
                return
            else:
                await self._news.wait()

    def _next(self) -> bytes:
        """Up to _SEND_BYTES and a line of what is to be sent."""
        content = bytearray()
        while self._unsent and len(content) < _SEND_BYTES:
            first = self._unsent[0]
            if isinstance(first, bytes):
                self._unsent_bytes -= len(first)
                content += first
                self._unsent.popleft()
            elif (line := next(first, None)) is not None:
                content += line.encode() + b"\n"
            else:
                self._unsent.popleft()
        return bytes(content)

    async def _read(self, take: Callable[[bytes], None]) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            line = await self._stream.read_line(MAX_LINE_BYTES)
            self._heard_at = clock()
            if line:
                try:
                    take(line)
                except BadLineError as error:
                    raise ProtocolError(str(error)) from None
            await asyncio.sleep(0)  # a flood leaves the others their turn


class LeaderLink:
    """An agent's way to its leader: dials until cancelled.

    hello: makes the first line of a connection from the own address on it. take: gets the leader's lines. lost: is
    called when a connection has ended.
    """

    def __init__(
        self,
        leader: Address,
        keys: Keys,
        hello: Callable[[str], str],
        take: Callable[[bytes], None],
        lost: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        self._leader, self._keys = leader, keys
        self._hello, self._take, self._lost, self._log = hello, take, lost, log
        self.connections = 0
        """Made so far."""
        self._lines: LineStream | None = None
        self._moved = asyncio.Event()

    def say(self, line: str) -> None:
        """Tell the leader; where there is no connection, nothing happens."""
        if self._lines is not None:
            self._lines.say(line)

    def move(self, leader: Address) -> None:
        """Go to another leader, now."""
        self._leader = leader
        self._moved.set()

    async def run(self) -> None:
        """Dial, carry, dial again, until cancelled."""
        while True:
            self._moved.clear()
            carrying = asyncio.create_task(self._run_to_one())
            moved = asyncio.create_task(self._moved.wait())
            try:
                await asyncio.wait([carrying, moved], return_when=asyncio.FIRST_COMPLETED)
                if carrying.done():  # it does not end but by an error of this program
                    carrying.result()
            finally:
                carrying.cancel()
                moved.cancel()
                await asyncio.gather(carrying, moved, return_exceptions=True)

    async def _run_to_one(self) -> None:
        waits, waiting, reported = pauses(*_PAUSES_S), Waiting(self._log), ""
        while True:
            try:
                async with self._connection() as lines:
                    waits, connected = pauses(*_PAUSES_S), Waiting(self._log)
                    try:
                        await lines.carry(self._take)
                    finally:
                        if connected.is_due:  # else it was of no use: the wait goes on
                            waiting = Waiting(self._log)
                reason, reported = "it closed the connection", ""
            except (SessionRefused, ProtocolError, KeysError) as error:
                reason = str(error)
                if reason != reported:
                    self._log(f"the leader at {self._leader}: {reason}; trying again")
                    reported = reason
                waits = pauses(_PAUSES_S[1], _PAUSES_S[1])
            except OSError as error:
                reason, reported = str(error) or "silent", ""
            waiting.tell(lambda reason=reason: f"the leader at {self._leader} ({reason}); training goes on meanwhile")
            await asyncio.sleep(next(waits))

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncGenerator[LineStream]:
        stream, _ = await dial(self._leader, self._keys, Greeting(Purpose.RUN, bytes(16), 0, "run"))
        self._lines = lines = LineStream(stream)
        self.connections += 1
        try:
            lines.say(self._hello(lines.own_host))
            yield lines
        finally:
            self._lines = None
            stream.close()
            self._lost()
