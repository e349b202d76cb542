"""The door of a listening port: who comes in has proved that it is a site of the job, and has said what it wants.

Strangers get nothing. A connection has GREETING_LIMIT_S to prove who it is, and at most MAX_STRANGERS may be at it;
when more come, the source with the most loses its oldest.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from geocomm.core.addresses import plain_host
from geocomm.core.message_log import CalmLog
from geocomm.security.key_folder import Identity, Keys, KeysError
from geocomm.wire.accepting import accept_forever
from geocomm.wire.greeting import Greeting, NotYetHere, PacketKind, ProtocolError, SessionRefused, write_packet
from geocomm.wire.tls_stream import TlsStream, explain

GREETING_LIMIT_S = 10.0
MAX_STRANGERS = 128
_LOG_INTERVAL_S = 10.0

ServeGreeting = Callable[[TlsStream, Greeting, Identity], Awaitable[None]]
"""Carries one connection to its end. The other side gets the message of a SessionRefused or ProtocolError that it
raises."""


class Doorway:
    """Serves one listening socket until it is cancelled. Used in one event loop."""

    def __init__(
        self,
        listener: socket.socket,
        keys: Keys,
        serve_greeting: ServeGreeting,
        log: Callable[[str], None],
        *,
        readers: bool = False,
    ) -> None:
        """readers: those with a reader's keys may come in, too."""
        self._listener = listener
        self._readers = readers
        self._keys = keys
        self._serve_greeting = serve_greeting
        self._log = CalmLog(log, _LOG_INTERVAL_S)
        self._strangers: dict[asyncio.Task[None], str] = {}

    @property
    def strangers(self) -> int:
        """Connections that have not proved who they are."""
        return len(self._strangers)

    async def serve(self) -> None:
        """Accept and carry until cancelled; then everything is closed."""
        await accept_forever(self._listener, self._begin, self._log)

    def _begin(self, connection: socket.socket, source: Any) -> asyncio.Task[None]:
        self._make_room()
        host = plain_host(str(source[0]))
        task = asyncio.create_task(self._welcome(connection, host))
        self._strangers[task] = host
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)

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
                peer = self._keys.check_peer(stream.tls, readers=self._readers)
                greeting = Greeting.unpack(await stream.read_exactly(Greeting.LAYOUT.size))
            task = asyncio.current_task()
            if task not in self._strangers:
                return  # made room for another in the meantime
            del self._strangers[task]
            await self._serve_greeting(stream, greeting, peer)
        except (SessionRefused, KeysError, ProtocolError) as error:
            if not isinstance(error, NotYetHere):
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


async def _refuse(stream: TlsStream, reason: str) -> None:
    """Tell a known site why; a stranger that cannot even be written to is nobody's loss."""
    with contextlib.suppress(OSError):
        async with asyncio.timeout(1):
            await write_packet(stream, PacketKind.REFUSED, reason.encode()[:512])


def raise_descriptor_limit() -> int:
    """Use as many file descriptors as the system allows this process; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 1 << 16) if hard != resource.RLIM_INFINITY else 1 << 16
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return soft
