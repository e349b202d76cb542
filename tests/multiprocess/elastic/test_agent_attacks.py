"""Strangers and hostile sites at the port of a leader: the run goes on, in the same process."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.addresses import Address
from geocomm.core.records import line_of
from geocomm.elastic.journal.message_lines import down_of
from geocomm.elastic.journal.messages import PROTOCOL_VERSION, Due, Hello, Lost, Model, Offer, Owner, RanksUp, Refused
from geocomm.elastic.leading.questions import LeaderAnswer, MembersAsked, RemovalAsked, ask
from geocomm.security.key_folder import Keys
from geocomm.wire.dial import dial
from geocomm.wire.doorway import MAX_STRANGERS
from geocomm.wire.greeting import Greeting, Purpose, SessionRefused
from geocomm.wire.tls_stream import TlsStream
from support.elastic_sites import ElasticSites
from support.hub_support import make_keys, run

pytestmark = pytest.mark.timeout(400)

HELLO = Hello(
    protocol=PROTOCOL_VERSION,
    geocomm="0",
    store="b" * 32,
    run=None,
    head=-1,
    head_hash=None,
    term=0,
    fetch="",
)
MODEL = Model(settings={"codec": "none"}, layout="2" * 32, fragments=1, every=4)
OFFER = Offer(
    fragment=0,
    version=10**15,
    attempt=0,
    frame="0" * 64,
    coded_bytes=2**40,
    exact_bytes=2**40,
    weight=2**53,
    step=2**53,
    squared_norm=0,
    lr=1e300,
    every=2**30,
)
Attack = Callable[[Address, Keys], Coroutine[Any, Any, None]]


async def crowd_of_half_open_connections(address: Address, keys: Keys) -> None:
    crowd = [socket.socket() for _ in range(4 * MAX_STRANGERS)]
    for stranger in crowd:
        stranger.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            stranger.connect((address.host, address.port))
        await asyncio.sleep(0.002)
    await ask(address, keys, MembersAsked(), LeaderAnswer)  # who is known is let in meanwhile
    for stranger in crowd:
        stranger.close()


async def random_bytes(address: Address, keys: Keys) -> None:
    for seed in range(50):
        with socket.create_connection((address.host, address.port)) as stranger, contextlib.suppress(OSError):
            stranger.sendall(random.Random(seed).randbytes(2000))


def lines(*content: bytes) -> Attack:
    async def attack(address: Address, keys: Keys) -> None:
        stream = await connected(address, keys, Purpose.RUN)
        with contextlib.suppress(ConnectionError):
            for line in content:
                await stream.write(line + b"\n")
                await asyncio.sleep(0.05)
            while True:  # until the leader ends it, within the time of `run`
                await stream.read_line(1 << 20)
        stream.close()

    return attack


async def connected(address: Address, keys: Keys, purpose: Purpose) -> TlsStream:
    stream, _ = await dial(address, keys, Greeting(purpose, bytes(16), 0, "x"))
    return stream


ATTACKS: dict[str, Attack] = {
    "crowd": crowd_of_half_open_connections,
    "random bytes": random_bytes,
    "no JSON": lines(b"\xff\x00"),
    "nothing of ours": lines(b'{"kind":"sudo"}'),
    "a deep line": lines(b"[" * 60_000),
    "a long line": lines(b"x" * (3 << 20)),
    "no hello": lines(line_of(Due(fragment=0, version=0)).encode()),
    "another fragment": lines(line_of(HELLO).encode(), line_of(Due(fragment=99, version=0)).encode()),
    "huge numbers": lines(
        line_of(HELLO).encode(),
        line_of(OFFER).encode(),
        line_of(Lost(fragment=0, version=10**15, site="zz", frame="0" * 64)).encode(),
        line_of(HELLO.model_copy(update={"head": 2**63})).encode(),
    ),
    "digests of another number": lines(
        line_of(HELLO).encode(),
        line_of(RanksUp(owners=(Owner(id="3" * 32, host="x", port=1),), model=MODEL, digests=())).encode(),
    ),
}


def test_no_attack_stops_the_run(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys", "ab")
    with ElasticSites(tmp_path, keys, wait_for=("a",)) as sites:
        a = sites["a"]
        address = Address.parse(a.leader)
        a.start()
        sites.until(lambda: len(a.rounds()) > 1, "rounds come")
        process = a.agent
        for name, attack in ATTACKS.items():
            before = len(a.rounds())
            run(attack(address, keys["b"]))
            sites.until(lambda before=before: len(a.rounds()) > before + 1, f"rounds come after: {name}")
            assert process is not None
            assert process.poll() is None, f"{name}: {a.text()}"
        assert "error of this program" not in a.text()


def test_agent_that_cannot_keep_the_term_ends_in_words_and_goes_on_once_it_can(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "a")) as sites:
        a = sites["a"]
        (a.folder / "agents.json").mkdir(parents=True)  # which no file takes the place of
        a.start_agent()
        sites.until(lambda: a.agent is not None and a.agent.poll() == 2, "the agent has ended")
        assert "promised to follow" in a.text()
        assert "Traceback" not in a.text()
        (a.folder / "agents.json").rmdir()
        a.start()
        sites.until(lambda: len(a.rounds()) > 1, "rounds come")


def test_who_has_another_model_or_version_is_refused_with_both_values(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys", "abc")

    async def answers(address: Address, *said: bytes) -> str:
        stream = await connected(address, keys["c"], Purpose.RUN)
        for line in said:
            await stream.write(line + b"\n")
        with contextlib.closing(stream):
            while True:
                line = await stream.read_line(1 << 20)
                if line and isinstance(down := down_of(line), Refused):
                    return down.why

    async def scenario(address: Address, other: Address) -> None:
        why = await answers(address, line_of(HELLO.model_copy(update={"protocol": 99})).encode())
        assert "99" in why
        assert str(PROTOCOL_VERSION) in why
        model = MODEL.model_copy(update={"settings": {"codec": "int4"}})
        owner = Owner(id="3" * 32, host="127.0.0.1", port=1)
        ranks = RanksUp(owners=(owner,), model=model, digests=("4" * 32,))
        why = await answers(address, line_of(HELLO).encode(), line_of(ranks).encode())
        assert "int4" in why
        assert "none" in why
        with pytest.raises(SessionRefused, match="--elastic"):
            await connected(address, keys["b"], Purpose.BEGIN)
        assert f"the leader is at {address}" in (await ask(other, keys["b"], MembersAsked(), LeaderAnswer)).problem
        assert (await ask(address, keys["b"], RemovalAsked(site="nobody", why="x"), LeaderAnswer)).problem

    with ElasticSites(tmp_path, keys, wait_for=("a",)) as sites:
        sites["a"].start()
        sites["b"].start_agent()
        sites.until(lambda: len(sites["a"].rounds()) > 1, "rounds come")
        sites.until(lambda: len(sites["b"].rounds()) > 1, "the agent of the other site follows")
        run(scenario(Address.parse(sites["a"].leader), Address.parse(sites["b"].listen)))


def test_a_removed_site_ends_and_may_not_come_back(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys", "ab")
    with ElasticSites(tmp_path, keys, wait_for=("a", "b")) as sites:
        for site in sites.values():
            site.start()
        sites.until(lambda: len(sites["a"].rounds()) > 1, "rounds come")

        async def remove() -> None:
            address = Address.parse(sites["a"].leader)
            assert not (
                await ask(address, keys["a"], RemovalAsked(site="b", why="broken memory"), LeaderAnswer)
            ).problem

        run(remove())
        b = sites["b"]
        assert b.agent is not None
        assert b.rank is not None
        sites.until(lambda: b.agent is not None and b.agent.poll() == 2, "the agent of the removed site ends")
        sites.until(lambda: b.rank is not None and b.rank.poll() is not None, "its rank ends")
        assert "broken memory" in b.text()
        b.start_agent()
        sites.until(lambda: b.agent is not None and b.agent.poll() == 2, "it is not taken in again")
        before = len(sites["a"].rounds())
        sites.until(lambda: len(sites["a"].rounds()) > before, "the other site goes on")
