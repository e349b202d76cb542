"""Connecting to another site: the first of its addresses that answers, TLS, the greeting."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl

from geocomm.core.addresses import Address, AddressInfo, by_turns
from geocomm.security.key_folder import Keys, KeysError
from geocomm.wire.greeting import Greeting, PacketKind, ProtocolError, SessionRefused, offset_of, read_packet
from geocomm.wire.tls_stream import TlsStream, explain

DIAL_LIMIT_S = 15.0
ATTEMPT_DELAY_S = 0.25
_CONNECT_LIMIT_S = 10.0


async def dial(hub: Address, keys: Keys, greeting: Greeting, *, readers: bool = False) -> tuple[TlsStream, int]:
    """A connection that the hub has accepted, and the bytes that it had of the session. readers: a reader may answer.

    Refused: the hub said no. KeysError: one end's keys are not good for the other. OSError (TimeoutError is one): not
    reached.
    """
    async with asyncio.timeout(DIAL_LIMIT_S):
        connection = await _connect(hub)
        stream = None
        try:
            stream = TlsStream(connection, keys.current_context(server=False), server=False)
            try:
                await stream.handshake()
                keys.check_peer(stream.tls, readers=readers)
            except (ssl.SSLError, KeysError) as error:
                told = explain(error) if isinstance(error, ssl.SSLError) else error
                raise KeysError(f"hub {hub}: {told}") from error
            with contextlib.suppress(ConnectionError):  # a hub that refused has closed; why, is there to be read
                await stream.write(greeting.pack())
            kind, content = await read_packet(stream)
            if kind is PacketKind.REFUSED:
                raise SessionRefused(content.decode(errors="replace"))
            if kind is not PacketKind.WELCOME:
                raise ProtocolError(f"the hub answered with {kind.name}")
            return stream, offset_of(content)
        except BaseException as error:
            stream.close() if stream is not None else connection.close()
            if isinstance(error, ssl.SSLError):  # in TLS 1.3 the hub judges a certificate after the handshake
                raise KeysError(f"hub {hub}: {explain(error)}") from error
            raise


async def _connect(hub: Address) -> socket.socket:
    """A connection to the first of the host's addresses that answers; one begins to be tried ATTEMPT_DELAY_S after the
    one before, or when that has failed (RFC 8305). OSError says what each of them answered."""
    loop = asyncio.get_running_loop()
    found = by_turns(await loop.getaddrinfo(hub.host, hub.port, type=socket.SOCK_STREAM))
    answers = {target[0]: "no answer" for *_, target in found}

    async def attempt(address: AddressInfo) -> socket.socket:
        family, kind, protocol, _, target = address
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, target)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                # Not its strerror: asyncio's has the address once more.
                answers[target[0]] = os.strerror(error.errno) if error.errno else str(error)
            raise
        return connection

    attempts: set[asyncio.Task[socket.socket]] = set()
    untried = iter(found)
    try:
        async with asyncio.timeout(_CONNECT_LIMIT_S):
            while (address := next(untried, None)) is not None or attempts:
                if address is not None:
                    attempts.add(asyncio.create_task(attempt(address)))
                limit_s = None if address is None else ATTEMPT_DELAY_S
                done, attempts = await asyncio.wait(attempts, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
                connected = [one.result() for one in done if one.exception() is None]
                for late in connected[1:]:
                    late.close()
                if connected:
                    return connected[0]
    except TimeoutError:
        pass
    finally:
        for one in attempts:
            one.cancel()
        for late in await asyncio.gather(*attempts, return_exceptions=True):
            if isinstance(late, socket.socket):
                late.close()
    told = (
        next(iter(answers.values()))
        if len(answers) == 1
        else ", ".join(f"{one}: {why}" for one, why in answers.items())
    )
    raise ConnectionError(told or f"{hub.host} has no address")
