"""The hub: the one port of a job's rendezvous. It ends the TLS connections of the sites' tunnels and joins each to a
store on this machine's loopback.

Strangers get nothing: no byte goes to a store before both sides have proved who they are (`Doorway`). Known sites may
hold as many sessions as there are file descriptors for.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from geocomm.core.patience import for_ever, said_meanwhile
from geocomm.group.rendezvous.store_session import RESUME_LIMIT_S, SILENCE_LIMIT_S, Session
from geocomm.group.rendezvous.to_collector import carry_to_collector
from geocomm.security.key_folder import Identity, Keys
from geocomm.wire.doorway import GREETING_LIMIT_S, MAX_STRANGERS, Doorway, raise_descriptor_limit
from geocomm.wire.greeting import (
    Greeting,
    PacketKind,
    ProtocolError,
    Purpose,
    SessionRefused,
    offset_bytes,
    write_packet,
)
from geocomm.wire.tls_stream import TlsStream

_SPARE_DESCRIPTORS = 64 + MAX_STRANGERS

PortOfStore = Callable[[str], Awaitable[int | None]]
"""Loopback port of the store with a name, which may be made now; None: there is no such store."""


@dataclass
class _Held:
    """A session that the hub has."""

    session: Session
    site: str
    store: str
    carrier: asyncio.Task[None] | None = None
    lost_at: float | None = None  # since when no connection carries it
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Hub:
    """Serves one listening socket until it is cancelled. Used in one event loop."""

    def __init__(
        self,
        listener: socket.socket,
        keys: Keys,
        port_of_store: PortOfStore,
        log: Callable[[str], None],
        telemetry: Path | None = None,
    ) -> None:
        """telemetry: the folder of a collector on this machine, which gets what sites report."""
        self._telemetry, self._log = telemetry, log
        self.doorway = Doorway(listener, keys, self._serve_greeting, log)
        self._port_of_store = port_of_store
        self._held: dict[bytes, _Held] = {}
        self.max_sessions = max(16, (raise_descriptor_limit() - _SPARE_DESCRIPTORS) // 2)

    @property
    def sessions(self) -> int:
        """Store connections that the hub carries or keeps for a tunnel to come back."""
        return len(self._held)

    async def serve(self) -> None:
        """Accept and carry until cancelled; then everything is closed."""
        reaper = asyncio.create_task(for_ever("what drops sessions of the hub", self._reap, self._log))
        try:
            await self.doorway.serve()
        finally:
            reaper.cancel()
            await asyncio.gather(reaper, return_exceptions=True)
            for held in self._held.values():
                held.session.close()

    def uses(self, store: str) -> bool:
        """Whether a session of that store is carried or kept."""
        return any(held.store == store for held in self._held.values())

    async def drained(self, limit_s: float) -> None:
        """Return when no session is left, or after `limit_s`. Logs whose it waits for."""

        def held() -> str:
            sites = sorted({one.site for one in self._held.values()})
            return f"site{'s' * (len(sites) > 1)} {', '.join(sites)} to leave the hub, for {limit_s:g} s at most"

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s), said_meanwhile(self._log, held):
                while self._held:
                    await asyncio.sleep(0.05)

    async def _serve_greeting(self, stream: TlsStream, greeting: Greeting, peer: Identity) -> None:
        if greeting.purpose is Purpose.PROBE:
            await write_packet(stream, PacketKind.WELCOME, offset_bytes(0))
            return
        if greeting.purpose is Purpose.TELEMETRY:
            await carry_to_collector(stream, peer.site, self._telemetry)
            return
        if greeting.purpose not in (Purpose.BEGIN, Purpose.RESUME):
            raise SessionRefused("this is the hub of geocomm run without --elastic: start all sites with it, or none")
        held = await self._begin(greeting, peer) if greeting.purpose is Purpose.BEGIN else self._find(greeting, peer)
        previous, held.carrier = held.carrier, asyncio.current_task()
        if previous is not None:
            previous.cancel()  # a connection that the tunnel has given up already
        async with held.turn:
            held.lost_at = None
            try:
                await write_packet(stream, PacketKind.WELCOME, offset_bytes(held.session.received))
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
            raise SessionRefused(
                f"the hub has {self.max_sessions} sessions, which is the most; raise its limit (ulimit -n)"
            )
        async with asyncio.timeout(GREETING_LIMIT_S):  # the tunnel has left by then, and comes again
            port = await self._port_of_store(greeting.store)
            if port is None:
                raise SessionRefused(f"the hub has no store {greeting.store!r}")
            held = _Held(Session(*await asyncio.open_connection("127.0.0.1", port)), peer.site, greeting.store)
        self._held[greeting.session] = held
        return held

    def _find(self, greeting: Greeting, peer: Identity) -> _Held:
        held = self._held.get(greeting.session)
        if held is None or held.site != peer.site:
            raise SessionRefused("the hub does not know this session: it ended, or the hub was started anew")
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
