"""The hub and the tunnel over real sockets: bytes arrive whole whatever breaks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from geocomm.core.addresses import Address
from geocomm.group.rendezvous import hub as hub_module
from geocomm.group.rendezvous import store_session
from geocomm.group.rendezvous.hub_rendezvous import loopback_store
from geocomm.wire.dial import dial
from geocomm.wire.greeting import Greeting, Purpose, SessionRefused
from support.hub_support import (
    BreakingProxy,
    EchoStore,
    hub_with_store,
    make_keys,
    run,
    running_hub,
    running_tunnel,
    stream_server,
    until,
)

pytestmark = pytest.mark.timeout(120)


async def echoed(port: int, content: bytes) -> bytes:
    """What comes back of `content`, sent as two programs would: one writes, the other reads."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def write() -> None:
        for start in range(0, len(content), 10_000):
            writer.write(content[start : start + 10_000])
            await writer.drain()

    writing = asyncio.create_task(write())
    back = await reader.readexactly(len(content))
    await writing
    writer.close()
    return back


def test_bytes_arrive_and_the_session_ends_with_the_connection(tmp_path: Path) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()
    content = random.Random(1).randbytes(3_000_000)  # more than a window

    async def work() -> None:
        async with (
            hub_with_store(keys["a"], store) as place,
            running_tunnel(place.address, keys["b"]) as port,
        ):
            assert await echoed(port, content) == content
            await until(lambda: place.hub.sessions == 0 and store.open == 0, "the session ends")

    run(work())


def test_bytes_arrive_whole_through_hundreds_of_resets(tmp_path: Path) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()
    content = random.Random(2).randbytes(1_500_000)

    async def work() -> None:
        async with hub_with_store(keys["a"], store) as place:
            proxy = BreakingProxy(place.address, most=60_000, seed=3)
            async with proxy.running() as address, running_tunnel(address, keys["b"]) as port:
                assert await echoed(port, content) == content
                assert proxy.resets > 50
                assert store.connections == 1
                assert place.hub.sessions <= 1

    run(work(), 100)


def test_store_of_torch_does_not_notice_resets(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")
    server = loopback_store(timedelta(seconds=30))

    def use(port: int) -> int:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
        for number in range(60):
            store.set(f"key{number}", bytes([number]) * 500)
            assert store.add("sum", number) == number * (number + 1) // 2
        assert all(store.get(f"key{number}") == bytes([number]) * 500 for number in range(60))
        return store.num_keys()

    async def work() -> None:
        async with running_hub(keys["a"], server.port) as place:
            proxy = BreakingProxy(place.address, most=20_000, seed=4)  # OpenSSL 3.5 shakes hands in more bytes
            async with proxy.running() as address, running_tunnel(address, keys["b"]) as port:
                assert await asyncio.to_thread(use, port) >= 61
            assert proxy.resets > 5

    run(work())


def test_silent_connection_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()
    monkeypatch.setattr(store_session, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(store_session, "SILENCE_LIMIT_S", 1.0)

    async def work() -> None:
        async with hub_with_store(keys["a"], store) as place:
            connections = silenced = 0  # those up to number `silenced` carry nothing any more, and stay open

            async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                nonlocal connections
                connections += 1
                number = connections
                there, back = await asyncio.open_connection(place.address.host, place.address.port)

                async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                    with contextlib.suppress(OSError):
                        while content := await source.read(4096):
                            if number > silenced:
                                target.write(content)

                await asyncio.gather(pump(reader, back), pump(there, writer))

            async with (
                stream_server("127.0.0.3", forward) as proxy,
                running_tunnel(Address("127.0.0.3", proxy), keys["b"]) as port,
            ):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"before")
                assert await reader.readexactly(6) == b"before"
                silenced = connections
                writer.write(b"during")
                assert await reader.readexactly(6) == b"during"
                assert connections > silenced
                writer.close()
            assert store.connections == 1

    run(work())


def test_quiet_session_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()
    monkeypatch.setattr(store_session, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr(store_session, "SILENCE_LIMIT_S", 1.0)

    async def work() -> None:
        async with hub_with_store(keys["a"], store) as place:
            lines: list[str] = []
            async with running_tunnel(place.address, keys["b"], lines) as port:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.sleep(2.5)
                writer.write(b"still here")
                assert await reader.readexactly(10) == b"still here"
                writer.close()
            assert lines == []

    run(work())


def test_hub_that_is_gone_or_new_ends_the_session(tmp_path: Path) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()

    async def work() -> None:
        async with store.running() as store_port:
            lines: list[str] = []
            async with running_hub(keys["a"], store_port) as first:
                proxy = BreakingProxy(first.address, most=1 << 40, seed=5)
                async with proxy.running() as address, running_tunnel(address, keys["b"], lines) as port:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(b"x")
                    await reader.readexactly(1)
                    async with running_hub(keys["a"], store_port) as second:
                        proxy._target = second.address
                        first.hub._held.clear()
                        for task in asyncio.all_tasks():
                            if getattr(task.get_coro(), "__qualname__", "") == "Doorway._welcome":
                                task.cancel()  # the connection breaks
                        assert await reader.read() == b""  # the store's client learns of it
                        writer.close()
            assert any("does not know this session" in line for line in lines)

    run(work())


def test_session_that_nobody_comes_back_for_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()
    monkeypatch.setattr(hub_module, "RESUME_LIMIT_S", 0.5)

    async def work() -> None:
        async with hub_with_store(keys["a"], store) as place:
            number = os.urandom(16)
            stream, _ = await dial(place.address, keys["b"], Greeting(Purpose.BEGIN, number, 0, "test"))
            assert place.hub.sessions == 1
            stream.close()
            await until(lambda: place.hub.sessions == 0 and store.open == 0, "the session is let go")
            with pytest.raises(SessionRefused, match="does not know"):
                await dial(place.address, keys["b"], Greeting(Purpose.RESUME, number, 0, "test"))

    run(work())
