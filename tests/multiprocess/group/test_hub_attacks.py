"""Strangers at the hub: they get nothing, and disturb nobody."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.addresses import Address
from geocomm.security.key_folder import Keys
from geocomm.wire import doorway
from geocomm.wire.dial import dial
from geocomm.wire.greeting import Greeting, Purpose
from support.hub_support import (
    PROBE,
    EchoStore,
    Place,
    hub_with_store,
    make_keys,
    plain_connection,
    run,
    running_tunnel,
    until,
)

pytestmark = pytest.mark.timeout(120)


async def stranger_without_certificate(place: Place, keys: dict[str, Keys]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(keys["b"].folder / "ca.pem")
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection(place.address.host, place.address.port, ssl=context)
        writer.write(PROBE.pack())
        assert await reader.read() == b""


async def stranger_with_random_bytes(place: Place, keys: dict[str, Keys]) -> None:
    for seed in range(20):
        with plain_connection(place.address) as stranger, contextlib.suppress(OSError):
            stranger.sendall(random.Random(seed).randbytes(2000))
            await asyncio.sleep(0.01)


async def stranger_who_speaks_http(place: Place, keys: dict[str, Keys]) -> None:
    with plain_connection(place.address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.1)


async def site_with_a_bad_greeting(place: Place, keys: dict[str, Keys]) -> None:
    context = keys["b"].context(server=False)
    for seed in range(20):
        reader, writer = await asyncio.open_connection(place.address.host, place.address.port, ssl=context)
        content = bytearray(PROBE.pack())
        content[seed % 6] ^= 0xFF
        with contextlib.suppress(OSError):
            writer.write(content)
            await reader.read()
            writer.close()


async def site_with_bad_packets(place: Place, keys: dict[str, Keys]) -> None:
    for content in (
        b"\x04\x08\x00\x00\x00" + b"\xff" * 8,  # acknowledges what was never sent
        b"\x03\xff\xff\xff\xff",  # more than a packet may have
        b"\x03\x01\x00\x01\x00",
        b"\x00\x00\x00\x00\x00",
        b"\x01\x08\x00\x00\x00" + bytes(8),
        b"\x04\x02\x00\x00\x00xx",
    ):
        stream, _ = await dial(place.address, keys["b"], Greeting(Purpose.BEGIN, os.urandom(16), 0, "test"))
        await stream.write(content)
        with contextlib.suppress(ConnectionError):
            await stream.read_exactly(200)
        stream.close()


@pytest.mark.parametrize(
    "attack",
    [
        stranger_without_certificate,
        stranger_with_random_bytes,
        stranger_who_speaks_http,
        site_with_a_bad_greeting,
        site_with_bad_packets,
    ],
)
def test_attack_reaches_no_store_and_disturbs_nobody(
    tmp_path: Path, attack: Callable[[Place, dict[str, Keys]], Coroutine[Any, Any, None]]
) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()

    async def work() -> None:
        async with (
            hub_with_store(keys["a"], store) as place,
            running_tunnel(place.address, keys["b"]) as port,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"a")
            assert await reader.readexactly(1) == b"a"
            await attack(place, keys)
            await until(lambda: place.hub.doorway.strangers == 0 and place.hub.sessions == 1, "the hub lets them go")
            assert store.received == 1
            writer.write(b"b")
            assert await reader.readexactly(1) == b"b"
            assert not any("error of this program" in line for line in place.lines)
            writer.close()

    run(work())


def test_thousands_of_half_open_connections_cost_little_and_disturb_nobody(tmp_path: Path) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()
    crowd: list[socket.socket] = []

    def knock(address: Address) -> None:
        for _ in range(3000):
            stranger = socket.socket()
            stranger.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                stranger.connect((address.host, address.port))
            crowd.append(stranger)
            if len(crowd) > 500:
                crowd.pop(0).close()

    async def work() -> None:
        async with hub_with_store(keys["a"], store) as place:
            async with running_tunnel(place.address, keys["b"]) as port:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                before = resident_bytes()
                knocking = asyncio.create_task(asyncio.to_thread(knock, place.address))
                echoes = 0
                while not knocking.done() or place.hub.doorway.strangers < doorway.MAX_STRANGERS:
                    assert place.hub.doorway.strangers <= doorway.MAX_STRANGERS
                    writer.write(b"x")
                    assert await reader.readexactly(1) == b"x"
                    echoes += 1
                # One more, who is known: it is let in while the crowd still knocks.
                (await dial(place.address, keys["b"], PROBE))[0].close()
                gc.collect()
                assert resident_bytes() - before < 64 << 20
                assert echoes > 10  # the hub accepts one, then its sessions carry something; 1 or 2 where they starve
                await until(lambda: sum(map(is_open, crowd)) <= doorway.MAX_STRANGERS, "the oldest are cut off")
                for stranger in crowd:
                    stranger.close()
                await until(lambda: place.hub.doorway.strangers == 0, "the crowd is gone")
                writer.close()
            assert len(place.lines) < 5  # however many they are

    run(work(), 100)


def test_slow_stranger_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()
    monkeypatch.setattr(doorway, "GREETING_LIMIT_S", 0.5)

    async def work() -> None:
        async with hub_with_store(keys["a"], store) as place:
            reader, writer = await asyncio.open_connection(place.address.host, place.address.port)
            ended = asyncio.create_task(reader.read())
            for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500):  # a client's hello, drop by drop
                if ended.done():
                    break
                writer.write(bytes([byte]))
                await asyncio.sleep(0.05)
            with contextlib.suppress(OSError):
                assert await ended == b""  # the hub, which waits for six bytes more, hung up
            await until(lambda: place.hub.doorway.strangers == 0, "the hub forgets it")
            assert any("too slow" in line for line in place.lines)
            writer.close()

    run(work())


def is_open(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
