"""Connections of sites at a real leader: none takes the others their turn, and an error ends one alone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.addresses import Address, listen_on
from geocomm.core.records import line_of
from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.known_agents import KnownAgents
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.message_lines import down_of
from geocomm.elastic.journal.messages import PROTOCOL_VERSION, Beat, Hello, SnapshotHeld, Welcome
from geocomm.elastic.journal.sequencer import Sequencer
from geocomm.elastic.journal.sequencer_events import LeaderSettings
from geocomm.elastic.leading.agent_link import LineStream
from geocomm.elastic.leading.leader import Leader
from geocomm.security.key_folder import Keys
from geocomm.wire.dial import dial
from geocomm.wire.doorway import Doorway
from geocomm.wire.greeting import Greeting, Purpose
from geocomm.wire.tls_stream import TlsStream
from support.hub_support import make_keys, run, until

pytestmark = pytest.mark.timeout(120)
BEAT = line_of(Beat(step=1, tokens=0, step_s=0.1, line_s=0, free_bytes=0)).encode()


async def tls_pair(keys: dict[str, Keys]) -> tuple[TlsStream, TlsStream]:
    """The two ends of a connection on this machine, the leader's first."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        two = socket.create_connection(listener.getsockname())
        one, _ = listener.accept()
    server = TlsStream(one, keys["a"].current_context(server=True), server=True)
    client = TlsStream(two, keys["b"].current_context(server=False), server=False)
    await asyncio.gather(server.handshake(), client.handshake())
    return server, client


def test_flood_of_lines_leaves_the_others_their_turn(tmp_path: Path) -> None:
    keys = make_keys(tmp_path, "ab")
    count = 3000

    async def scenario() -> None:
        server, client = await tls_pair(keys)
        turns = taken = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        def take(_: bytes) -> None:
            nonlocal taken
            taken += 1

        # Much of it is there at once: nothing has to be waited for.
        writing = asyncio.create_task(client.write((BEAT + b"\n") * count))
        work = asyncio.create_task(other())
        carrying = asyncio.create_task(LineStream(server).carry(take))
        await until(lambda: taken == count, "all lines are taken")
        assert turns >= count
        for task in (work, carrying, writing):
            task.cancel()
        await asyncio.gather(work, carrying, writing, return_exceptions=True)
        client.close()

    # The kernel's buffer of a socket pair is short: a thread would be needed for more.
    run(scenario())


def test_lines_in_any_pieces_are_lines_and_what_follows_them_is_left(tmp_path: Path) -> None:
    keys = make_keys(tmp_path, "ab")

    async def scenario() -> None:
        server, client = await tls_pair(keys)
        content = b"one\n\ntwo\nrest" + bytes(100)
        for place in range(len(content)):
            await client.write(content[place : place + 1])
        await client.write(b"x" * 50 + b"\n" + b"y" * 101)
        assert [await server.read_line(10) for _ in range(3)] == [b"one", b"", b"two"]
        assert await server.read_exactly(4) == b"rest"
        assert await server.read_exactly(100) == bytes(100)
        assert await server.read_line(50) == b"x" * 50
        with pytest.raises(ConnectionAbortedError, match="100"):
            await server.read_line(100)
        await client.write(b"\n")

    run(scenario())


@contextlib.asynccontextmanager
async def leading(folder: Path, keys: Keys) -> Any:
    """A leader at a port, and what it has said."""
    said: list[str] = []
    journal = SqliteJournal(RunDir(folder).journal)
    leader = Leader(journal, LeaderSettings(), "", KnownAgents(folder, said.append), said.append)
    listener = listen_on("127.0.0.1:0")
    address = Address("127.0.0.1", listener.getsockname()[1])
    doorway = Doorway(listener, keys, lambda stream, _, peer: leader.serve_site(stream, peer.site), said.append)
    tasks = [asyncio.create_task(doorway.serve()), asyncio.create_task(leader.lead())]
    try:
        yield leader, address, said
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        journal.close()


async def welcomed(address: Address, keys: Keys, fetch: str = "") -> TlsStream:
    stream, _ = await dial(address, keys, Greeting(Purpose.RUN, bytes(16), 0, "run"))
    hello = Hello(
        protocol=PROTOCOL_VERSION,
        geocomm="0",
        store=f"{ord(keys.identity.site):032x}",
        run=None,
        head=-1,
        head_hash=None,
        term=0,
        fetch=fetch,
    )
    await stream.write(line_of(hello).encode() + b"\n")
    assert isinstance(down_of(await stream.read_line(1 << 20)), Welcome)
    return stream


def test_error_of_the_leader_upon_what_a_site_says_ends_that_site_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = make_keys(tmp_path / "keys", "abc")
    take = Sequencer._take

    def fails(self: Sequencer, name: str, site: Any, message: Any) -> None:
        if isinstance(message, SnapshotHeld):
            raise RuntimeError("not foreseen")
        take(self, name, site, message)

    monkeypatch.setattr(Sequencer, "_take", fails)

    async def scenario() -> None:
        async with leading(tmp_path, keys["a"]) as (leader, address, said):
            for _ in range(3):
                honest, liar = await welcomed(address, keys["b"]), await welcomed(address, keys["c"])
                await liar.write(line_of(SnapshotHeld(snapshot=1, digest="0" * 32)).encode() + b"\n")
                with contextlib.suppress(ConnectionError):
                    while True:
                        await liar.read_line(1 << 20)
                assert leader.sequencer.sites["b"].connected
                assert not leader.sequencer.sites["c"].connected
                heard = leader.sequencer.sites["b"].heard
                await honest.write(BEAT + b"\n")
                await until(lambda heard=heard: leader.sequencer.sites["b"].heard > heard, "the other is heard")
            assert sum("not foreseen" in line for line in said) >= 1

    run(scenario())


def test_leader_that_was_stopped_finds_no_site_silent_for_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = make_keys(tmp_path / "keys", "ab")

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        time = loop.time
        async with leading(tmp_path, keys["a"]) as (leader, address, _):
            stream = await welcomed(address, keys["b"])
            heard = leader.sequencer.sites["b"].heard
            monkeypatch.setattr(loop, "time", lambda: time() + 20)
            await stream.write(BEAT + b"\n")
            await until(lambda: leader.sequencer.sites["b"].heard > heard, "it is heard")
            assert leader.sequencer.sites["b"].heard < heard + 15
            stream.close()

    run(scenario())


def test_site_of_another_version_is_told_so_in_words(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys", "ab")

    async def scenario() -> None:
        async with leading(tmp_path, keys["a"]) as (_, address, _):
            stream, _ = await dial(address, keys["b"], Greeting(Purpose.RUN, bytes(16), 0, "run"))
            await stream.write(b'{"kind":"hello","protocol":99,"what":"new"}\n')
            assert "same version of geocomm" in (await stream.read_line(1 << 20)).decode()

    run(scenario())


@pytest.mark.parametrize("fetch", ["nowhere", "host:0", "0.0.0.0:1", "a" * 64 + ".com:1", "h:99999"])
def test_site_whose_address_is_none_is_not_taken_in(tmp_path: Path, fetch: str) -> None:
    keys = make_keys(tmp_path / "keys", "abc")

    async def scenario() -> None:
        async with leading(tmp_path, keys["a"]) as (leader, address, said):
            await welcomed(address, keys["b"], "b.example:1")
            with pytest.raises(ConnectionError):
                await welcomed(address, keys["c"], fetch)
            assert "c" not in leader.state.sites
            assert any("gives out files" in line for line in said)

    run(scenario())
