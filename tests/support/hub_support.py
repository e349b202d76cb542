"""What tests of the hub share: keys, a hub and a tunnel in one event loop, a proxy that breaks connections."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geocomm.core.addresses import Address, listen_on, loopback_listener
from geocomm.core.options import Options
from geocomm.group.rendezvous.hub import Hub
from geocomm.group.rendezvous.tunnel import Tunnel
from geocomm.security.job_ca import JobCa
from geocomm.security.key_folder import Keys
from geocomm.wire.accepting import serve_streams
from geocomm.wire.greeting import Greeting, Purpose

HUB_HOST = "127.0.0.2"
PROBE = Greeting(Purpose.PROBE, bytes(16), 0, "probe")
# Ranks that cannot use keys themselves would refuse them under "required".
SECURITY = "required" if "keys" in Options.model_fields else "insecure"


def run(work: Coroutine[Any, Any, None], limit_s: float = 60) -> None:
    """Run to the end, which has to come within `limit_s`."""

    async def limited() -> None:
        async with asyncio.timeout(limit_s):
            await work

    asyncio.run(limited())


async def until(condition: Callable[[], bool], what: str, limit_s: float = 60) -> None:
    """Return once `condition` holds."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """`work` runs beside the block, and is cancelled at its end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def make_keys(folder: Path, sites: str = "ab", job: str = "run7") -> dict[str, Keys]:
    """Good keys, by site."""
    JobCa.create(folder, job, list(sites), 30)
    return {site: Keys.load(folder / site) for site in sites}


@dataclass
class Place:
    """A hub, and what it said."""

    hub: Hub
    address: Address
    lines: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def running_hub(
    keys: Keys, port_of_store: int | Callable[[str], object], telemetry: Path | None = None
) -> AsyncIterator[Place]:
    """A hub at HUB_HOST; its only store is at a loopback port, or as `port_of_store` says. telemetry: the folder of a
    collector."""

    async def fixed(_: str) -> int:
        return port_of_store

    listener = listen_on(f"{HUB_HOST}:0")
    lines: list[str] = []
    hub = Hub(listener, keys, port_of_store if callable(port_of_store) else fixed, lines.append, telemetry)
    async with beside(hub.serve()):
        yield Place(hub, Address(HUB_HOST, listener.getsockname()[1]), lines)


@contextlib.asynccontextmanager
async def running_tunnel(address: Address, keys: Keys, lines: list[str] | None = None) -> AsyncIterator[int]:
    """A tunnel to `address`; yields its loopback port."""
    listener = loopback_listener()
    port = listener.getsockname()[1]
    tunnel = Tunnel(listener, address, keys, "test", (lines if lines is not None else []).append)
    async with beside(tunnel.serve()):
        yield port
        await tunnel.drained(5)


@contextlib.asynccontextmanager
async def stream_server(
    host: str, carry: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[int]:
    """Yields the port at which each connection is carried; those that are left are closed at the end."""
    listener = listen_on(f"{host}:0")
    async with beside(serve_streams(listener, carry, print)):
        yield listener.getsockname()[1]


class EchoStore:
    """Stands where a store would: returns what it gets, and counts who came and what they brought."""

    def __init__(self) -> None:
        self.connections = 0
        self.received = 0
        self.open = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        async with stream_server("127.0.0.1", self._echo) as port:
            yield port

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        with contextlib.suppress(OSError):
            while content := await reader.read(65536):
                self.received += len(content)
                writer.write(content)
                await writer.drain()
        self.open -= 1


@contextlib.asynccontextmanager
async def hub_with_store(keys: Keys, store: EchoStore) -> AsyncIterator[Place]:
    """A hub whose only store is `store`."""
    async with store.running() as port, running_hub(keys, port) as place:
        yield place


class BreakingProxy:
    """Forwards to the hub and resets each connection after a random number of bytes, up to `most`."""

    def __init__(self, target: Address, most: int, seed: int) -> None:
        self._target = target
        self._most = most
        self._random = random.Random(seed)
        self.resets = 0
        self.silent = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Address]:
        async with stream_server("127.0.0.3", self._forward) as port:
            yield Address("127.0.0.3", port)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._target.host, self._target.port)
        left = [self._random.randrange(1, self._most)]

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while content := await source.read(4096):
                part = content[: left[0]]
                left[0] -= len(part)
                target.write(part)
                await target.drain()
                if left[0] <= 0:
                    self.resets += 1
                    return

        tasks = [asyncio.create_task(pump(reader, back)), asyncio.create_task(pump(there, writer))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, back):
            end.transport.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def plain_connection(address: Address) -> socket.socket:
    """A stranger's connection."""
    return socket.create_connection((address.host, address.port), timeout=10)
