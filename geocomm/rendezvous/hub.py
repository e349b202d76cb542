"""The hub: the one port of a job's rendezvous. It ends the TLS connections of the sites' tunnels and joins each to a
store on this machine's loopback.

Strangers get nothing: no byte goes to a store before both sides have proved who they are, a connection has
GREETING_LIMIT_S for that, and at most MAX_STRANGERS may be at it; when more come, the source with the most loses its
oldest. Known sites may hold as many sessions as there are file descriptors for.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from geocomm.rendezvous.store_session import (
    RESUME_LIMIT_S,
    SILENCE_LIMIT_S,
    FrameKind,
    Greeting,
    ProtocolError,
    Purpose,
    Refused,
    Session,
    offset_bytes,
    write_frame,
)
from geocomm.rendezvous.tls_stream import TlsStream
from geocomm.security.keys import Identity, Keys, KeysError
from geocomm.security.tls_errors import explain

GREETING_LIMIT_S = 10.0
MAX_STRANGERS = 128
_SPARE_DESCRIPTORS = 64 + MAX_STRANGERS
_LOG_INTERVAL_S = 10.0

PortOfStore = Callable[[str], Awaitable[int | None]]
"""Loopback port of the store with a name, which may be made now; None: there is no such store."""


@dataclass
class _Held:
    """A session that the hub has."""

    session: Session
    site: str
    carrier: asyncio.Task[None] | None = None
    lost_at: float | None = None  # since when no connection carries it
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Hub:
    """Serves one listening socket until it is cancelled. Used in one event loop."""

    def __init__(
        self, listener: socket.socket, keys: Keys, port_of_store: PortOfStore, log: Callable[[str], None]
    ) -> None:
        self._listener = listener
        self._keys = keys
        self._port_of_store = port_of_store
        self._log = _CalmLog(log)
        self._strangers: dict[asyncio.Task[None], str] = {}
        self._held: dict[bytes, _Held] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.max_sessions = max(16, (_raise_descriptor_limit() - _SPARE_DESCRIPTORS) // 2)

    @property
    def sessions(self) -> int:
        """Store connections that the hub carries or keeps for a tunnel to come back."""
        return len(self._held)

    @property
    def strangers(self) -> int:
        """Connections that have not proved who they are."""
        return len(self._strangers)

    async def serve(self) -> None:
        """Accept and carry until cancelled; then everything is closed."""
        reaper = asyncio.create_task(self._reap())
        try:
            while True:
                try:
                    connection, source = await asyncio.get_running_loop().sock_accept(self._listener)
                except OSError as error:  # out of descriptors, or the peer is gone again
                    self._log(f"cannot accept a connection: {error.strerror}")
                    await asyncio.sleep(0.1)
                    continue
                self._make_room()
                task = asyncio.create_task(self._welcome(connection, str(source[0])))
                self._strangers[task] = str(source[0])
                self._tasks.add(task)
                task.add_done_callback(self._forget)
                await asyncio.sleep(0)  # a flood keeps accept from ever waiting; the sessions get their turn
        finally:
            self._listener.close()
            for task in (reaper, *self._tasks):
                task.cancel()
            await asyncio.gather(reaper, *self._tasks, return_exceptions=True)
            for held in self._held.values():
                held.session.close()

    async def drained(self, limit_s: float) -> None:
        """Return when no session is left, or after `limit_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._held:
                    await asyncio.sleep(0.05)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log(f"internal error: {error!r}")

    def _make_room(self) -> None:
        if len(self._strangers) < MAX_STRANGERS:
            return
        crowd = Counter(self._strangers.values()).most_common(1)[0][0]
        oldest = next(task for task, source in self._strangers.items() if source == crowd)
        del self._strangers[oldest]
        oldest.cancel()
        self._log(f"more than {MAX_STRANGERS} unproven connections; closed the oldest from {crowd}")

    async def _welcome(self, connection: socket.socket, source: str) -> None:
        """One connection, from its first byte to its last."""
        stream = None
        try:
            stream = TlsStream(connection, self._keys.current_context(server=True), server=True)
            async with asyncio.timeout(GREETING_LIMIT_S):
                await stream.handshake()
                peer = self._keys.check_peer(stream.tls)
                greeting = Greeting.unpack(await stream.read_exactly(Greeting.LAYOUT.size))
            task = asyncio.current_task()
            if task not in self._strangers:
                return  # made room for another in the meantime
            del self._strangers[task]
            await self._serve_greeting(stream, greeting, peer)
        except (Refused, KeysError, ProtocolError) as error:
            self._log(f"refused a connection from {source}: {error}")
            if stream is not None:
                await _refuse(stream, str(error))
        except ssl.SSLError as error:
            self._log(f"refused a connection from {source}: {explain(error)}")
        except OSError as error:
            if asyncio.current_task() in self._strangers:
                self._log(f"a connection from {source} ended before it proved who it is: {str(error) or 'too slow'}")
        finally:
            if stream is not None:
                stream.close()
            else:
                connection.close()

    async def _serve_greeting(self, stream: TlsStream, greeting: Greeting, peer: Identity) -> None:
        if greeting.purpose is Purpose.PROBE:
            await write_frame(stream, FrameKind.WELCOME, offset_bytes(0))
            return
        held = await self._begin(greeting, peer) if greeting.purpose is Purpose.BEGIN else self._find(greeting, peer)
        previous, held.carrier = held.carrier, asyncio.current_task()
        if previous is not None:
            previous.cancel()  # a connection that the tunnel has given up already
        async with held.turn:
            held.lost_at = None
            try:
                await write_frame(stream, FrameKind.WELCOME, offset_bytes(held.session.received))
                await held.session.carry(stream, greeting.received)
            except ProtocolError:
                self._drop(greeting.session)
                raise
            finally:
                held.lost_at = time.monotonic()
        if held.session.over:
            self._drop(greeting.session)

    async def _begin(self, greeting: Greeting, peer: Identity) -> _Held:
        if greeting.session in self._held:  # the answer to the first BEGIN was lost
            return self._find(greeting, peer)
        if len(self._held) >= self.max_sessions:
            raise Refused(f"the hub has {self.max_sessions} sessions, which is the most; raise its limit (ulimit -n)")
        async with asyncio.timeout(GREETING_LIMIT_S):  # the tunnel has left by then, and comes again
            port = await self._port_of_store(greeting.store)
            if port is None:
                raise Refused(f"the hub has no store {greeting.store!r}")
            held = _Held(Session(*await asyncio.open_connection("127.0.0.1", port)), peer.site)
        self._held[greeting.session] = held
        return held

    def _find(self, greeting: Greeting, peer: Identity) -> _Held:
        held = self._held.get(greeting.session)
        if held is None or held.site != peer.site:
            raise Refused("the hub does not know this session: it ended, or the hub was started anew")
        return held

    def _drop(self, session: bytes) -> None:
        if held := self._held.pop(session, None):
            held.session.close()

    async def _reap(self) -> None:
        """Lets go of sessions that no tunnel came back for."""
        while True:
            await asyncio.sleep(1)
            now = time.monotonic()
            for number, held in list(self._held.items()):
                limit_s = SILENCE_LIMIT_S if held.session.local_ended else RESUME_LIMIT_S
                if not held.turn.locked() and held.lost_at is not None and now - held.lost_at > limit_s:
                    self._drop(number)


async def _refuse(stream: TlsStream, reason: str) -> None:
    """Tell a known site why; a stranger that cannot even be written to is nobody's loss."""
    with contextlib.suppress(OSError):
        async with asyncio.timeout(1):
            await write_frame(stream, FrameKind.REFUSED, reason.encode()[:512])


class _CalmLog:
    """Logs at most one line in _LOG_INTERVAL_S, with the number of those left out: strangers cannot fill the disk."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._last = float("-inf")
        self._left_out = 0

    def __call__(self, message: str) -> None:
        now = time.monotonic()
        if now - self._last < _LOG_INTERVAL_S:
            self._left_out += 1
            return
        self._log(message + (f" (and {self._left_out} more such events)" if self._left_out else ""))
        self._last, self._left_out = now, 0


def _raise_descriptor_limit() -> int:
    """Use as many file descriptors as the system allows this process; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 1 << 16) if hard != resource.RLIM_INFINITY else 1 << 16
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return soft
