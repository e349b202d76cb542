"""A site's way to the hub: a loopback port whose connections continue, through TLS, at a store of the hub's machine.

Dials out only. A connection to the hub that drops is replaced without the store's client noticing, for RESUME_LIMIT_S.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

from geocomm.core.addresses import Address
from geocomm.core.patience import Waiting, pauses, said_meanwhile
from geocomm.group.rendezvous.store_session import RESUME_LIMIT_S, Session
from geocomm.security.key_folder import Keys, KeysError
from geocomm.wire.accepting import accept_forever
from geocomm.wire.dial import dial
from geocomm.wire.greeting import Greeting, ProtocolError, Purpose, SessionRefused

_PAUSES_S = (0.1, 5.0)
MAX_SESSIONS = 4096


async def probe(
    hub: Address, keys: Keys, limit_s: float, log: Callable[[str], None], also: Callable[[], str] = str
) -> None:
    """Return once the hub has let this site in; a hub that is not there yet has `limit_s` to come.

    Says to `log` after 10, 30 and 90 s and so on that it waits, with what `also` says.

    Raises what dial() does, and ConnectionError with the last reason where nobody answered in time.
    """
    loop = asyncio.get_running_loop()
    end, waits, reason = loop.time() + limit_s, pauses(*_PAUSES_S), "no answer"
    # Beside the attempts, of which one that nobody answers takes longer than the first word may.
    async with said_meanwhile(log, lambda: f"the hub at {hub} to answer ({reason}){also()}"):
        while True:
            try:
                stream, _ = await dial(hub, keys, Greeting(Purpose.PROBE, bytes(16), 0, "probe"))
            except (SessionRefused, ProtocolError, KeysError):
                raise
            except OSError as error:
                if loop.time() > end:
                    raise ConnectionError(
                        f"no hub answers at {hub} since {limit_s:g} s ({str(error) or 'time-out'}); it runs where "
                        f"{hub.host} is, started with the same --hub, and its port must be open to the other sites"
                    ) from error
                reason = str(error) or "no answer"
                await asyncio.sleep(next(waits))
            else:
                stream.close()
                return


class Tunnel:
    """Serves one loopback socket until cancelled. Used in one event loop."""

    def __init__(
        self, listener: socket.socket, hub: Address, keys: Keys, store: str, log: Callable[[str], None]
    ) -> None:
        self._listener = listener
        self._hub = hub
        self._keys = keys
        self._store = store
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._sessions: set[Session] = set()

    async def serve(self) -> None:
        """Accept and carry until cancelled; then everything is closed."""
        await accept_forever(self._listener, self._begin, self._log)

    def _begin(self, connection: socket.socket, _: object) -> asyncio.Task[None]:
        task = asyncio.create_task(self._carry(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drained(self, limit_s: float) -> None:
        """End the sessions in order: return when what programs wrote has arrived, or after `limit_s`."""
        for session in self._sessions:
            session.finish()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)

    async def _carry(self, connection: socket.socket) -> None:
        """One connection of a store's client, over as many connections to the hub as it takes."""
        if len(self._sessions) >= MAX_SESSIONS:
            return
        loop = asyncio.get_running_loop()
        # A duplicate, since the session's end closes its own once all is sent, after this task has ended.
        session = Session(*await asyncio.open_connection(sock=connection.dup()))
        self._sessions.add(session)
        number, purpose, waiting = os.urandom(16), Purpose.BEGIN, Waiting(self._log)
        waits, reported = pauses(*_PAUSES_S), ""
        lost_at: float | None = loop.time()
        try:
            while not session.over:
                try:
                    greeting = Greeting(purpose, number, session.received, self._store)
                    stream, received = await dial(self._hub, self._keys, greeting)
                    with contextlib.closing(stream):
                        purpose, waits, reported, lost_at = Purpose.RESUME, pauses(*_PAUSES_S), "", None
                        await session.carry(stream, received)
                except (SessionRefused, ProtocolError) as error:
                    if not session.local_ended:
                        self._log(f"a connection to the store at {self._hub} is lost: {error}")
                    return
                except (KeysError, OSError) as error:
                    lost_at = lost_at or loop.time()
                    if loop.time() - lost_at > RESUME_LIMIT_S or (session.local_ended and purpose is Purpose.BEGIN):
                        return
                    reason = str(error) or "time-out"
                    if purpose is Purpose.BEGIN:  # rank 0 may be about to make the store that is asked for
                        waiting.tell(lambda why=reason: f"rank 0's store, through the hub at {self._hub} ({why})")
                    elif reason != reported:
                        self._log(f"no connection to the hub at {self._hub}: {reason}; trying again")
                        reported = reason
                    await asyncio.sleep(next(waits))
        finally:
            self._sessions.discard(session)
            session.close()
