"""A rank's connection to its agent: it comes back after the agent was away, and a hostile line ends only itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import threading
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from geocomm.core.run_dir import RunDir
from geocomm.elastic.journal.messages import Down, Due, Leave, Model, Owner, RankHello, RankWelcome, Repair, Stop, Up
from geocomm.elastic.site.rank_socket import RankConnection, RankServer, RankSocket
from geocomm.wire.doorway import raise_descriptor_limit
from support.hub_support import run, until

pytestmark = pytest.mark.timeout(60)

HELLO = RankHello(
    place=0,
    owners=1,
    owner=Owner(id="1" * 32, host="127.0.0.1", port=1),
    model=Model(settings={}, layout="2" * 32, fragments=1, every=8),
    digests={0: "3" * 32},
    versions={0: 0},
)


@dataclass
class Heard:
    ranks: list[RankConnection] = field(default_factory=list)
    said: list[Up] = field(default_factory=list)
    gone: list[RankConnection] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def started(path: Path, hello: Callable[[], RankHello] = lambda: HELLO) -> tuple[RankSocket, list[Down]]:
    """A rank's end, and what it hears."""
    heard: list[Down] = []
    rank = RankSocket(path, hello, heard.append)
    rank.start()
    return rank, heard


@contextlib.asynccontextmanager
async def serving(path: Path) -> AsyncGenerator[Heard]:
    heard, began = Heard(), asyncio.Event()
    server = RankServer(
        path, heard.ranks.append, lambda _, up: heard.said.append(up), heard.gone.append, heard.lines.append
    )
    task = asyncio.create_task(server.serve(began.set))
    await asyncio.wait([task, asyncio.create_task(began.wait())], return_when=asyncio.FIRST_COMPLETED)
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_rank_comes_back_when_its_agent_does(tmp_path: Path) -> None:
    path = RunDir(tmp_path).agent_socket

    async def scenario() -> None:
        rank, told = started(path)
        rank.say(Due(fragment=0, version=0))  # there is no agent: it is dropped
        async with serving(path) as heard:
            await until(lambda: len(heard.ranks) == 1, "the rank says hello")
            assert heard.ranks[0].hello == HELLO
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            rank.say(Due(fragment=0, version=1))
            await until(lambda: bool(heard.said), "the rank is heard")
            heard.ranks[0].say(Repair(fragment=0))
            await until(lambda: told == [Repair(fragment=0)], "the rank hears its agent")
        await until(lambda: not rank.connected, "the rank sees that its agent is gone")
        rank.say(Due(fragment=0, version=2))
        async with serving(path) as heard:
            await until(lambda: len(heard.ranks) == 1, "the rank says hello anew")
            rank.say(Due(fragment=0, version=3))
            await asyncio.to_thread(rank.close, 20.0)  # sends it first
            await until(lambda: bool(heard.gone), "the rank has ended")
            assert heard.said == [Due(fragment=0, version=3)]
            assert told == [Repair(fragment=0)]

    run(scenario())


def test_the_next_agent_hears_how_far_a_rank_knows_the_run_though_no_entry_came_since_its_welcome(
    tmp_path: Path,
) -> None:
    path = RunDir(tmp_path).agent_socket
    welcome = RankWelcome(
        site="a", run="4" * 32, versions={0: 0}, head=7, head_hash="5" * 64, states={}, every=8, step=0
    )

    async def scenario() -> None:
        rank, told = started(path)
        async with serving(path) as heard:
            await until(lambda: len(heard.ranks) == 1, "the rank says hello")
            heard.ranks[0].say(welcome)
            await until(lambda: told == [welcome], "the rank hears its agent")
        await until(lambda: not rank.connected, "the rank sees that its agent is gone")
        async with serving(path) as heard:
            await until(lambda: len(heard.ranks) == 1, "the rank says hello anew")
            hello = heard.ranks[0].hello
            assert (hello.head, hello.head_hash) == (7, "5" * 64)
            rank.close()

    run(scenario())


def test_the_last_words_of_a_rank_are_heard_though_its_agent_speaks_before_it_listens(tmp_path: Path) -> None:
    path = RunDir(tmp_path).agent_socket

    async def scenario() -> None:
        async with serving(path) as heard:
            rank, _ = started(path)
            await until(lambda: len(heard.ranks) == 1, "the rank says hello")
            rank.say(Leave())
            ended = asyncio.create_task(asyncio.to_thread(rank.close, 20.0))
            await asyncio.sleep(0)
            time.sleep(1.5)  # the agent is busy: it reads nothing
            heard.ranks[0].say(Repair(fragment=0))
            await ended
            await until(lambda: bool(heard.gone), "the rank has ended")
            assert heard.said == [Leave()]

    run(scenario())


@pytest.mark.parametrize(
    "content",
    [
        b"\n",
        b"{}\n",
        b"\xff\xfe\n",
        b'{"kind":"due","fragment":0,"version":0}\n',
        b"[" * 60000 + b"\n",
        b"x" * (3 << 20),
    ],
)
def test_a_hostile_line_ends_its_connection_and_no_other(tmp_path: Path, content: bytes) -> None:
    path = RunDir(tmp_path).agent_socket

    async def scenario() -> None:
        async with serving(path) as heard:
            rank, _ = started(path)
            await until(lambda: len(heard.ranks) == 1, "the rank says hello")
            with socket.socket(socket.AF_UNIX) as other:
                other.connect(str(path))
                with contextlib.suppress(ConnectionError):
                    await asyncio.to_thread(other.sendall, content)
                await until(lambda: bool(heard.lines), "the line is refused")
            rank.say(Due(fragment=0, version=1))
            await until(lambda: bool(heard.said), "the rank is heard")
            assert len(heard.ranks) == 1
            assert not heard.gone
            await asyncio.to_thread(rank.close)

    run(scenario())


def test_a_rank_that_reads_nothing_loses_its_connection(tmp_path: Path) -> None:
    path = RunDir(tmp_path).agent_socket

    async def scenario() -> None:
        async with serving(path) as heard:
            with socket.socket(socket.AF_UNIX) as deaf:
                deaf.connect(str(path))
                deaf.sendall(HELLO.model_dump_json().encode() + b"\n")
                await until(lambda: len(heard.ranks) == 1, "it says hello")
                for _ in range(17 << 20 >> 12):
                    heard.ranks[0].say(Stop(why="x" * 4090))
                await until(lambda: bool(heard.gone), "it is given up")

    run(scenario())


def test_a_rank_that_speaks_as_its_agent_ends_still_hears_why(tmp_path: Path) -> None:
    path = RunDir(tmp_path).agent_socket
    busy, go_on = threading.Event(), threading.Event()
    told: list[Down] = []

    def hear(down: Down) -> None:
        told.append(down)
        busy.set()
        go_on.wait(20)

    async def scenario() -> None:
        async with serving(path) as heard:
            rank = RankSocket(path, lambda: HELLO, hear)
            rank.start()
            await until(lambda: bool(heard.ranks), "the rank says hello")
            agent = heard.ranks[0]
            agent.say(Repair(fragment=0))
            await until(busy.is_set, "the rank hears")
            rank.say(Due(fragment=0, version=0))  # is written before the rank reads on
            agent.say(Stop(why="it was removed"))
            agent.close()
            agent.say(Repair(fragment=1))
            await asyncio.sleep(0.1)  # all that a closed connection would do here
            go_on.set()
            await until(lambda: bool(heard.gone), "the rank ends the connection")
            assert told[:2] == [Repair(fragment=0), Stop(why="it was removed")]
            assert heard.said == [Due(fragment=0, version=0)]
            await asyncio.to_thread(rank.close)

    run(scenario())


def test_a_run_folder_with_a_long_path_has_its_socket_elsewhere(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    assert len(os.fsencode(RunDir(long).agent_socket)) < 108
    assert RunDir(long).agent_socket != RunDir(tmp_path / ("y" * 120)).agent_socket


def test_an_error_of_this_program_costs_a_rank_one_connection_and_its_log_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hellos = 0

    def hello() -> RankHello:
        nonlocal hellos
        hellos += 1
        if hellos <= 3:
            raise RuntimeError("not foreseen")
        return HELLO

    async def scenario() -> None:
        async with serving(RunDir(tmp_path).agent_socket) as heard:
            rank, _ = started(RunDir(tmp_path).agent_socket, hello)
            await until(lambda: len(heard.ranks) == 1, "the rank is there")
            await asyncio.to_thread(rank.close)

    run(scenario())
    assert hellos == 4
    assert sum("not foreseen" in record.message for record in caplog.records) == 1


def test_a_rank_with_more_than_a_thousand_open_files_reaches_its_agent(tmp_path: Path) -> None:
    raise_descriptor_limit()
    with contextlib.ExitStack() as files:
        for _ in range(1100):
            files.enter_context(open(os.devnull))

        async def scenario() -> None:
            async with serving(RunDir(tmp_path).agent_socket) as heard:
                rank, told = started(RunDir(tmp_path).agent_socket)
                await until(lambda: len(heard.ranks) == 1, "the rank is there")
                rank.say(Due(fragment=0, version=0))
                await until(lambda: len(heard.said) == 1, "it is heard")
                heard.ranks[0].say(Repair(fragment=0))
                await until(lambda: bool(told), "the rank hears its agent")
                await asyncio.to_thread(rank.close)

        run(scenario())


def test_ranks_of_another_version_do_not_fill_the_log_of_their_agent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(RunDir(tmp_path).agent_socket) as heard:
            for _ in range(20):
                reader, writer = await asyncio.open_unix_connection(RunDir(tmp_path).agent_socket)
                writer.write(b'{"kind":"rank_hello","new":1}\n')
                await writer.drain()
                assert await reader.read() == b""  # it is ended
                writer.close()
            assert len(heard.lines) == 1

    run(scenario())
