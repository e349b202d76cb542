"""Real agents on invented machines: what a real process has of sockets, signals and clocks is put in place here."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import os
import random
import secrets
import shutil
import sqlite3
import sys
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from geocomm.core import file_systems
from geocomm.core.addresses import Address, AddressError
from geocomm.core.records import line_of
from geocomm.core.run_dir import RunDir
from geocomm.elastic import agent_process
from geocomm.elastic.agent_process import AgentConfig, run_agent
from geocomm.elastic.files import fetch, fragment_store
from geocomm.elastic.files.file_server import FileServer, FrameAsked
from geocomm.elastic.files.fragment_store import FragmentStore, StoreError
from geocomm.elastic.files.known_agents import KnownAgents, TermNotKeptError
from geocomm.elastic.files.snapshots import SnapshotError
from geocomm.elastic.journal import average_checks, journal
from geocomm.elastic.journal.entries import BadLineError, Entry, Head
from geocomm.elastic.journal.journal import NoJournalError, SqliteJournal
from geocomm.elastic.journal.message_lines import down_of, said
from geocomm.elastic.journal.messages import Down, RankHello, Up, Wanted
from geocomm.elastic.leading import agent_link, etcd_leadership, leader, leadership, questions
from geocomm.elastic.site import following
from geocomm.elastic.site.run_view import AgentEnded
from geocomm.wire.file_ranges import MAX_LINE_BYTES, RangeAnswer
from geocomm.wire.greeting import Greeting, Purpose
from support.whole_run.damage import damage
from support.whole_run.etcd import EtcdModel, client_of
from support.whole_run.machines import PORT, Door, Machine, Process, Room, SimulatedKeys, World, current
from support.whole_run.registry import Registry

_SOCKET_S = 0.001
_Answer = TypeVar("_Answer")
_DISK = shutil._ntuple_diskusage(100 << 30, 50 << 30, 50 << 30)  # pyright: ignore


class RankLine:
    """A rank's connection to its agent, as the agent sees it: `RankConnection`, and the other end of it."""

    def __init__(self, hello: RankHello) -> None:
        self.hello = hello
        self.to_rank: asyncio.Queue[Down | None] = asyncio.Queue()
        """None: the agent has ended it, or has died."""
        self.to_agent: asyncio.Queue[Up | None] = asyncio.Queue()
        self.closed = False

    def say(self, down: Down) -> None:
        """See RankConnection."""
        if not self.closed:
            self.to_rank.put_nowait(down_of(said(down).encode()))

    def close(self) -> None:
        """See RankConnection."""
        self.closed = True
        self.to_rank.put_nowait(None)


class RankServer:
    """In the place of the one with a socket."""

    def __init__(self, path: Path, came: Any, said: Any, gone: Any, log: Callable[[str], None]) -> None:
        self._came, self._said, self._gone, self._log = came, said, gone, log
        self._lines: dict[RankLine, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        """Until cancelled."""
        machine = current().machine
        self._context = copy_context()
        machine.rank_server = self
        try:
            await asyncio.Event().wait()
        finally:
            if machine.rank_server is self:
                machine.rank_server = None
            tasks = [*self._lines.values()]
            for task in tasks:
                task.cancel()
            for line in [*self._lines]:
                self._end(line)
            await asyncio.gather(*tasks, return_exceptions=True)

    def connect(self, hello: RankHello) -> RankLine:
        """A rank dials."""
        line = RankLine(hello)
        self._lines[line] = asyncio.get_running_loop().create_task(self._carry(line), context=self._context)
        return line

    def _end(self, line: RankLine) -> None:
        if self._lines.pop(line, None) is not None:
            line.to_rank.put_nowait(None)

    async def _carry(self, line: RankLine) -> None:
        came = False
        try:
            await asyncio.sleep(_SOCKET_S)
            came = True
            self._came(line)
            while (up := await line.to_agent.get()) is not None:
                self._said(line, up)
        except BadLineError as error:
            self._log(f"ended the connection of a rank: {error}")
        except Exception:
            self._log(f"ended the connection of a rank by an error of this program: {traceback.format_exc()}")
        finally:
            self._end(line)
            if came:
                self._gone(line)


class Doorway:
    """In the place of the one with a socket."""

    def __init__(self, listener: Listener, keys: SimulatedKeys, serve: Any, log: Callable[[str], None]) -> None:
        self._machine, self._serve = listener.machine, serve

    async def serve(self) -> None:
        """Until cancelled; then everything is closed."""
        door = Door(current(), self._serve)
        self._machine.door = door
        try:
            await asyncio.Event().wait()
        finally:
            if self._machine.door is door:
                self._machine.door = None
            for task in [*door.carrying]:
                task.cancel()
            await asyncio.gather(*door.carrying, return_exceptions=True)


@dataclass
class Listener:
    """A socket that listens."""

    machine: Machine

    def close(self) -> None:
        """Nothing is open."""


def open_port(
    hub: str, listen: str | None, port_before: int, *, lead: bool = False, taken_over: bool = False
) -> tuple[Listener, bool]:
    """See `leadership.open_port`."""
    machine = current().machine
    return Listener(machine), not taken_over and Address.parse(hub).host == machine.host


def _leave_on_signals(leaving: asyncio.Event) -> None:
    before, current().leaving = current().leaving, leaving
    if before.is_set():  # it was held back until here
        leaving.set()


async def _count_nothing(*_: Any) -> None:
    await asyncio.Event().wait()


@contextlib.contextmanager
def simulated(
    world: World,
    folder: Path,
    chance: random.Random,
    now: Callable[[], float],
    etcd: EtcdModel,
    registry: Registry,
) -> Generator[None]:
    """While agents are simulated. folder: has the run folder of each machine, by its name. registry: is told of each
    term of a leader that the agent of a site takes, of all that comes into a journal, and of the frames on disks."""
    really_saw = KnownAgents.saw

    def saw(known: KnownAgents, term: int, leader: str) -> None:
        really_saw(known, term, leader)
        registry.follows(current().machine.name, known.term)

    def hexadecimal(size: int = 16) -> str:
        return f"{chance.getrandbits(8 * size):0{2 * size}x}"

    nobody = Machine("", "")

    def machine_of(path: Path) -> Machine:
        return world.machines.get(path.relative_to(folder).parts[0], nobody)

    def room_for(path: Path) -> Room:
        return machine_of(path).room

    really_put = file_systems.put_in_place

    def put_in_place(part: Path, path: Path) -> None:
        room = room_for(path)
        is_large = path.parent.parent != folder  # else it lies beside the journal
        if room is Room.FOR_NOTHING or (is_large and room is Room.FOR_LITTLE):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        really_put(part, path)
        if path.suffix == ".frame":
            store = json.loads(RunDir(folder / path.relative_to(folder).parts[0]).store_id.read_text())["id"]
            registry.held.setdefault(path.stem.rpartition("-")[2], set()).add(store)
        if is_large and machine_of(path).changes_files and chance.random() < 0.3:
            damage(path, chance)

    really_new_part = FragmentStore.new_part

    def new_part(of: FragmentStore, path: Path) -> Path:
        if room_for(path) is not Room.FOR_ALL and not path.parent.exists():  # a folder takes room too
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path.parent))
        return really_new_part(of, path)

    really_begin = SqliteJournal._transaction

    def transaction(of: SqliteJournal) -> Any:
        if room_for(of.path) is Room.FOR_NOTHING:
            raise sqlite3.OperationalError("database or disk is full")
        return really_begin(of)

    really_fetch = agent_process.fetch_if_damaged

    async def fetch_if_damaged(*given: Any) -> bool:
        has_one = await really_fetch(*given)
        current().machine.is_damaged = current().machine.is_damaged and not has_one
        return has_one

    really_append = SqliteJournal.append_all

    def append_all(of: SqliteJournal, new: Sequence[Entry], expected_head: Head) -> None:
        really_append(of, new, expected_head)
        registry.appended(new)

    really_give = FileServer._give

    async def give(of: FileServer, stream: Any, asked: Any, site: str) -> None:
        if isinstance(asked, FrameAsked) and asked.offset == 0 and of._store.has_frame(**asked.named):
            registry.regions.sent(asked.frame, current().machine.name, site)
        await really_give(of, stream, asked, site)

    random.seed(chance.random())
    with contextlib.ExitStack() as stack:

        def put(where: Any, name: str, what: Any) -> None:
            stack.enter_context(mock.patch.object(where, name, what))

        for module in (agent_link, fetch, questions):
            put(module, "dial", world.dial)
        for module in (file_systems, fragment_store, fetch):
            put(module, "put_in_place", put_in_place)
        put(FileServer, "_give", give)
        put(FragmentStore, "new_part", new_part)
        put(SqliteJournal, "_transaction", transaction)
        put(SqliteJournal, "append_all", append_all)
        put(leader, "_LOOKED_AT_EVERY_S", 15.0)
        put(agent_process, "fetch_if_damaged", fetch_if_damaged)
        put(agent_process, "Doorway", Doorway)
        put(agent_process, "RankServer", RankServer)
        put(agent_process, "keep_counters", _count_nothing)
        put(agent_process, "_leave_on_signals", _leave_on_signals)
        put(agent_process, "reached_here", lambda listener: Address(listener.machine.host, PORT))
        put(leadership, "open_port", open_port)
        put(etcd_leadership, "listen_on", lambda _: Listener(current().machine))
        put(sys.modules["etcd3gw.client"], "Etcd3Client", client_of(etcd))
        put(following, "own_address", lambda _: current().machine.host)
        put(KnownAgents, "saw", saw)
        put(time, "monotonic", now)
        put(average_checks, "ONE_IN", 3)
        put(secrets, "token_hex", hexadecimal)
        put(uuid, "uuid4", lambda: uuid.UUID(int=chance.getrandbits(128)))
        put(journal, "network_file_system", lambda _: "")
        put(shutil, "disk_usage", lambda _: _DISK)
        yield


_PARTS = itertools.count()


def store_of_process(run_dir: str) -> FragmentStore:
    """A store whose parts have other names than those of other processes, though all have one process id here."""
    store = FragmentStore(run_dir)
    store._numbers = _PARTS
    return store


@dataclass(frozen=True)
class AgentEnd:
    """How the process of an agent ended."""

    status: int
    why: str = ""
    is_error: bool = False
    """Of the program."""


async def run_process(process: Process, config: AgentConfig) -> AgentEnd:
    """As `agent_process.main`."""
    keys: Any = SimulatedKeys(process.machine)
    try:
        store = store_of_process(config.run_dir)
        store.sweep()
        await run_agent(config, store, keys)
        return AgentEnd(0)
    except (SnapshotError, StoreError, NoJournalError, AddressError, AgentEnded) as error:
        return AgentEnd(2, str(error))
    except Exception as error:
        is_of_disk = isinstance(error, sqlite3.OperationalError | TermNotKeptError)
        if is_of_disk or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
            await asyncio.sleep(5)
            return AgentEnd(1, str(error))
        if process.machine.was_damaged and isinstance(error, sqlite3.DatabaseError | BadLineError):
            return AgentEnd(1, f"the journal cannot be read: {error}")
        return AgentEnd(1, traceback.format_exc(), is_error=True)


async def at_machine(machine: Machine, work: Callable[[Any], Awaitable[_Answer]]) -> _Answer:
    """What a person at a machine does with its keys."""
    done: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
    process = Process(machine, "person")

    async def run() -> None:
        try:
            done.set_result(await work(SimulatedKeys(machine)))
        except Exception as error:
            done.set_exception(error)

    process.start(run())
    try:
        return await done
    finally:
        await process.kill()


async def ask(machine: Machine, at: str, question: Any, kind: type[_Answer], limit_s: float = 90.0) -> _Answer:
    """A person at a machine asks an agent."""
    return await at_machine(machine, lambda keys: questions.ask(Address.parse(at), keys, question, kind, limit_s))


async def ask_for_frame(world: World, machine: Machine, at: str, wanted: Wanted) -> RangeAnswer:
    """Ask an agent for a frame, which it is to get from others."""

    async def work(keys: Any) -> RangeAnswer:
        stream, _ = await world.dial(Address.parse(at), keys, Greeting(Purpose.FETCH, bytes(16), 0, "fetch"))
        try:
            asked = FrameAsked(**wanted.named, bytes=wanted.bytes, offset=0, proxy=True)
            await stream.write(line_of(asked).encode() + b"\n")
            async with asyncio.timeout(90):
                return RangeAnswer.model_validate_json(await stream.read_line(MAX_LINE_BYTES))
        finally:
            stream.close()

    return await at_machine(machine, work)
