"""The hub and the tunnel over real sockets: bytes arrive whole whatever breaks, strangers get nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hub_support import BreakingProxy, EchoStore, Place, make_keys, plain_connection, running_hub, running_tunnel

from geocomm import hub as hub_module
from geocomm import store_session
from geocomm.hub_address import HubAddress, HubAddressError
from geocomm.job_ca import JobCa
from geocomm.rendezvous import loopback_store
from geocomm.security import Identity, Keys, KeysError
from geocomm.store_session import Greeting, ProtocolError, Purpose, Refused
from geocomm.tunnel import dial, probe

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(120)]
PROBE = Greeting(Purpose.PROBE, bytes(16), 0, "probe")


def run(work: Coroutine[Any, Any, None], limit_s: float = 60) -> None:
    async def limited() -> None:
        async with asyncio.timeout(limit_s):
            await work

    asyncio.run(limited())


async def until(condition: Callable[[], bool], what: str, limit_s: float = 20) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.02)


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
            store.running() as store_port,
            running_hub(keys["a"], store_port) as place,
            running_tunnel(place.address, keys["b"]) as port,
        ):
            assert await echoed(port, content) == content
            await until(lambda: place.hub.sessions == 0, "the session ends")
            assert store.open == 0

    run(work())


def test_bytes_arrive_whole_through_hundreds_of_resets(tmp_path: Path) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()
    content = random.Random(2).randbytes(1_500_000)

    async def work() -> None:
        async with store.running() as store_port, running_hub(keys["a"], store_port) as place:
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
            proxy = BreakingProxy(place.address, most=9_000, seed=4)
            async with proxy.running() as address, running_tunnel(address, keys["b"]) as port:
                assert await asyncio.to_thread(use, port) >= 61
            assert proxy.resets > 5

    run(work())


def test_silent_connection_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()
    monkeypatch.setattr(store_session, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(store_session, "SILENCE_LIMIT_S", 1.0)

    async def work() -> None:
        async with store.running() as store_port, running_hub(keys["a"], store_port) as place:
            gate = asyncio.Event()
            gate.set()

            async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                there, back = await asyncio.open_connection(place.address.host, place.address.port)

                async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                    with contextlib.suppress(OSError):
                        while content := await source.read(4096):
                            if not gate.is_set():
                                await asyncio.sleep(3600)  # this connection never carries anything again
                            target.write(content)

                await asyncio.gather(pump(reader, back), pump(there, writer))

            proxy = await asyncio.start_server(forward, "127.0.0.3", 0)
            address = HubAddress("127.0.0.3", proxy.sockets[0].getsockname()[1])
            async with running_tunnel(address, keys["b"]) as port:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"before")
                assert await reader.readexactly(6) == b"before"
                gate.clear()
                writer.write(b"during")
                await asyncio.sleep(0.5)
                gate.set()
                assert await reader.readexactly(6) == b"during"
                writer.close()
            assert store.connections == 1
            proxy.close()

    run(work())


def test_quiet_session_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()
    monkeypatch.setattr(store_session, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr(store_session, "SILENCE_LIMIT_S", 1.0)

    async def work() -> None:
        async with store.running() as store_port, running_hub(keys["a"], store_port) as place:
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
                        for task in list(first.hub._tasks):
                            task.cancel()
                        assert await reader.read() == b""  # the store's client learns of it
                        writer.close()
            assert any("does not know this session" in line for line in lines)

    run(work())


def test_store_that_is_not_there_is_refused(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")

    async def none(_: str) -> None:
        return None

    async def work() -> None:
        async with running_hub(keys["a"], none) as place:
            with pytest.raises(Refused, match="no store"):
                await dial(place.address, keys["b"], Greeting(Purpose.BEGIN, os.urandom(16), 0, "other"))

    run(work())


def test_hub_with_as_many_sessions_as_it_may_have_refuses_more(tmp_path: Path) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()

    async def work() -> None:
        async with store.running() as store_port, running_hub(keys["a"], store_port) as place:
            place.hub.max_sessions = 2
            numbers = [os.urandom(16) for _ in range(3)]
            streams = [
                (await dial(place.address, keys["b"], Greeting(Purpose.BEGIN, number, 0, "test")))[0]
                for number in numbers[:2]
            ]
            with pytest.raises(Refused, match="ulimit"):
                await dial(place.address, keys["b"], Greeting(Purpose.BEGIN, numbers[2], 0, "test"))
            assert store.connections == 2
            for stream in streams:
                stream.close()

    run(work())


def test_session_that_nobody_comes_back_for_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()
    monkeypatch.setattr(hub_module, "RESUME_LIMIT_S", 0.5)

    async def work() -> None:
        async with store.running() as store_port, running_hub(keys["a"], store_port) as place:
            number = os.urandom(16)
            stream, _ = await dial(place.address, keys["b"], Greeting(Purpose.BEGIN, number, 0, "test"))
            assert place.hub.sessions == 1
            stream.close()
            await until(lambda: place.hub.sessions == 0 and store.open == 0, "the session is let go")
            with pytest.raises(Refused, match="does not know"):
                await dial(place.address, keys["b"], Greeting(Purpose.RESUME, number, 0, "test"))

    run(work())


def test_session_of_another_site_cannot_be_taken_over(tmp_path: Path) -> None:
    keys, store = make_keys(tmp_path / "keys", "abc"), EchoStore()

    async def work() -> None:
        async with store.running() as store_port, running_hub(keys["a"], store_port) as place:
            number = os.urandom(16)
            stream, _ = await dial(place.address, keys["b"], Greeting(Purpose.BEGIN, number, 0, "test"))
            for purpose in (Purpose.RESUME, Purpose.BEGIN):
                with pytest.raises(Refused):
                    await dial(place.address, keys["c"], Greeting(purpose, number, 0, "test"))
            stream.close()
            again, received = await dial(place.address, keys["b"], Greeting(Purpose.RESUME, number, 0, "test"))
            assert received == 0
            again.close()

    run(work())


def expired(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import UTC, datetime

    from geocomm import job_ca

    class Past(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime.now(UTC) - timedelta(days=40)

    with monkeypatch.context() as patch:
        patch.setattr(job_ca, "datetime", Past)
        JobCa.open(folder).renew("b", 30)


@pytest.mark.parametrize("kind", ["expired", "revoked", "other CA", "other job"])
def test_site_with_bad_keys_is_refused_and_both_ends_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    keys = make_keys(tmp_path / "keys")
    client, at_client, at_hub = keys["b"], kind, kind
    if kind == "expired":
        expired(tmp_path / "keys", monkeypatch)
    elif kind == "revoked":
        JobCa.open(tmp_path / "keys").revoke("b")
        (tmp_path / "keys/b/crl.pem").unlink()
    elif kind == "other CA":
        client, at_client, at_hub = (
            make_keys(tmp_path / "other")["b"],
            "not signed by this job's CA",
            "not of its job's CA",
        )
    else:
        # Same CA, another job: only the name in the certificate tells.
        at_client = at_hub = "of job run7, but this is job run8"
        keys["a"] = Keys(keys["a"].folder, Identity("run8", "a"))
        client = Keys(client.folder, Identity("run8", "b"))
    store = EchoStore()

    async def work() -> None:
        async with store.running() as store_port, running_hub(keys["a"], store_port) as place:
            with pytest.raises(KeysError, match=at_client):
                await dial(place.address, client, PROBE)
            if kind != "other job":  # there, the client leaves first
                await until(lambda: bool(place.lines), "the hub says why")
                assert at_hub in place.lines[0]
            assert store.connections == 0

    run(work())


def test_renewed_keys_are_used_without_a_new_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()

    async def work() -> None:
        async with store.running() as store_port, running_hub(keys["a"], store_port) as place:
            expired(tmp_path / "keys", monkeypatch)
            with pytest.raises(KeysError):
                await dial(place.address, keys["b"], PROBE)
            JobCa.open(tmp_path / "keys").renew("b", 30)
            (await dial(place.address, keys["b"], PROBE))[0].close()
            JobCa.open(tmp_path / "keys").revoke("b")  # the running hub reads the new list
            with pytest.raises(KeysError, match="revoked"):
                await dial(place.address, keys["b"], PROBE)

    run(work())


def test_hub_without_tls_is_told_from_one_with(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def work() -> None:
        async with await asyncio.start_server(answer, "127.0.0.2", 0) as server:
            with pytest.raises(KeysError, match="does not speak TLS"):
                await dial(HubAddress("127.0.0.2", server.sockets[0].getsockname()[1]), keys["b"], PROBE)

    run(work())


def test_probe_waits_for_the_hub_and_names_it_if_it_does_not_come(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")

    async def work() -> None:
        with socket.create_server(("127.0.0.2", 0)) as taken:
            port = taken.getsockname()[1]
        with pytest.raises(ConnectionError, match=f"127.0.0.2:{port}"):
            await probe(HubAddress("127.0.0.2", port), keys["b"], 0.3)

    run(work())


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


async def site_with_bad_frames(place: Place, keys: dict[str, Keys]) -> None:
    for content in (
        b"\x04\x08\x00\x00\x00" + b"\xff" * 8,  # acknowledges what was never sent
        b"\x03\xff\xff\xff\xff",  # more than a frame may have
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
        site_with_bad_frames,
    ],
)
def test_attack_reaches_no_store_and_disturbs_nobody(
    tmp_path: Path, attack: Callable[[Place, dict[str, Keys]], Coroutine[Any, Any, None]]
) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()

    async def work() -> None:
        async with (
            store.running() as store_port,
            running_hub(keys["a"], store_port) as place,
            running_tunnel(place.address, keys["b"]) as port,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"a")
            assert await reader.readexactly(1) == b"a"
            await attack(place, keys)
            await until(lambda: place.hub.strangers == 0 and place.hub.sessions == 1, "the hub lets them go")
            assert store.received == 1
            writer.write(b"b")
            assert await reader.readexactly(1) == b"b"
            assert not any("internal error" in line for line in place.lines)
            writer.close()

    run(work())


def test_thousands_of_half_open_connections_cost_little_and_disturb_nobody(tmp_path: Path) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()
    crowd: list[socket.socket] = []

    def knock(address: HubAddress) -> None:
        for _ in range(3000):
            stranger = socket.socket()
            stranger.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                stranger.connect((address.host, address.port))
            crowd.append(stranger)
            if len(crowd) > 500:
                crowd.pop(0).close()

    async def work() -> None:
        async with store.running() as store_port, running_hub(keys["a"], store_port) as place:
            async with running_tunnel(place.address, keys["b"]) as port:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                before = resident_bytes()
                knocking = asyncio.create_task(asyncio.to_thread(knock, place.address))
                slowest_s = 0.0
                while not knocking.done() or place.hub.strangers < hub_module.MAX_STRANGERS:
                    assert place.hub.strangers <= hub_module.MAX_STRANGERS
                    began = time.monotonic()
                    writer.write(b"x")
                    assert await reader.readexactly(1) == b"x"
                    slowest_s = max(slowest_s, time.monotonic() - began)
                # One more, who is known: it is let in while the crowd still knocks.
                (await dial(place.address, keys["b"], PROBE))[0].close()
                gc.collect()
                assert resident_bytes() - before < 64 << 20
                assert slowest_s < 5
                await until(lambda: sum(map(is_open, crowd)) <= hub_module.MAX_STRANGERS, "the oldest are cut off")
                for stranger in crowd:
                    stranger.close()
                await until(lambda: place.hub.strangers == 0, "the crowd is gone")
                writer.close()
            assert len(place.lines) < 5  # however many they are

    run(work(), 100)


def test_slow_stranger_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()
    monkeypatch.setattr(hub_module, "GREETING_LIMIT_S", 0.5)

    async def work() -> None:
        async with store.running() as store_port, running_hub(keys["a"], store_port) as place:
            reader, writer = await asyncio.open_connection(place.address.host, place.address.port)
            began = time.monotonic()
            with contextlib.suppress(OSError):
                for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20:  # a client's hello, drop by drop
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.05)
                    if reader.at_eof():
                        break
                await reader.read()
            assert time.monotonic() - began < 5
            assert place.hub.strangers == 0
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


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:99999", "0.0.0.0:5", "[::]:5", "[::1:5"])
def test_bad_hub_address_is_refused(text: str) -> None:
    with pytest.raises(HubAddressError):
        HubAddress.parse(text)


@pytest.mark.parametrize("text", ["h.example:29400", "[::1]:29400", "geocomm://10.0.0.1:29400?listen=0.0.0.0:1"])
def test_hub_address_is_read(text: str) -> None:
    assert HubAddress.parse(text).port == 29400
    assert HubAddress.parse(str(HubAddress.parse(text))) == HubAddress.parse(text)


def test_random_greetings_are_refused() -> None:
    for seed in range(2000):
        content = random.Random(seed).randbytes(Greeting.LAYOUT.size)
        if seed % 2:
            content = b"GCHB\x01" + content[5:]
        with pytest.raises(ProtocolError):
            Greeting.unpack(content)
