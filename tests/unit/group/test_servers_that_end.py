"""A server that ends at the moment at which somebody comes closes that connection too: nobody waits for an answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from geocomm.core.addresses import Address, listen_on, private_listener
from geocomm.elastic.site.rank_socket import RankServer
from geocomm.group.rendezvous.tunnel import Tunnel
from geocomm.wire.accepting import serve_streams
from geocomm.wire.doorway import Doorway
from support.hub_support import make_keys
from support.local_jobs import free_port


async def _ends_after(serving: asyncio.Task[None], client: socket.socket, turns: int) -> None:
    """Cancel a server some turns of the event loop after the client came; the client must see the end."""
    for _ in range(turns):
        await asyncio.sleep(0)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    client.setblocking(False)
    with client, contextlib.suppress(ConnectionError):
        async with asyncio.timeout(10):
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


@pytest.mark.parametrize("turns", range(8))
def test_tunnel_that_ends_closes_the_store_client_that_has_just_come(tmp_path: Path, turns: int) -> None:
    keys = make_keys(tmp_path, "a")["a"]

    async def run() -> None:
        listener = listen_on("127.0.0.1:0")
        tunnel = Tunnel(listener, Address("127.0.0.1", free_port()), keys, "store", lambda _: None)
        serving = asyncio.create_task(tunnel.serve())
        await asyncio.sleep(0.05)
        client = socket.create_connection(listener.getsockname(), timeout=10)
        await _ends_after(serving, client, turns)

    asyncio.run(run())


async def _nobody(*_: object) -> None:
    raise AssertionError("nobody has proved who he is")


@pytest.mark.parametrize("turns", range(8))
def test_doorway_that_ends_closes_whom_it_has_just_accepted(tmp_path: Path, turns: int) -> None:
    keys = make_keys(tmp_path, "a")["a"]

    async def run() -> None:
        listener = listen_on("127.0.0.1:0")
        doorway = Doorway(listener, keys, _nobody, lambda _: None)
        serving = asyncio.create_task(doorway.serve())
        await asyncio.sleep(0.05)
        client = socket.create_connection(listener.getsockname(), timeout=10)
        await _ends_after(serving, client, turns)

    asyncio.run(run())


@pytest.mark.parametrize("turns", range(8))
def test_agent_that_ends_closes_the_rank_that_has_just_come(tmp_path: Path, turns: int) -> None:
    async def run() -> None:
        path = tmp_path / "agent.sock"
        server = RankServer(path, _nobody, _nobody, _nobody, lambda _: None)  # type: ignore[arg-type]
        serves = asyncio.Event()
        serving = asyncio.create_task(server.serve(serves.set))
        await serves.wait()
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(path))
        await _ends_after(serving, client, turns)

    asyncio.run(run())


def test_connection_that_ends_by_an_error_of_this_program_is_told_and_others_are_served(tmp_path: Path) -> None:
    lines: list[str] = []

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        if await reader.read(1) == b"x":
            raise KeyError("not foreseen")

    async def run() -> None:
        with private_listener(tmp_path / "a.sock") as listener:
            serving = asyncio.create_task(serve_streams(listener, serve, lines.append))
            for said in (b"x", b"y"):
                reader, writer = await asyncio.open_unix_connection(tmp_path / "a.sock")
                writer.write(said)
                async with asyncio.timeout(10):
                    assert await reader.read() == b""
                writer.close()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(run())
    (line,) = lines
    assert "not foreseen" in line
