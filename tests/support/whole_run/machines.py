"""The machines of a simulated run, the processes on them, and the lines between, which may be cut.

A stream is like that of `TlsStream`: bytes in order, both ways. What is on a line that is cut waits until it heals, as
TCP sends again. A process that is killed resets its connections; a machine that ends says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from typing import Any

from geocomm.core.addresses import Address
from geocomm.security.key_folder import Identity, KeysError
from geocomm.wire.dial import DIAL_LIMIT_S
from geocomm.wire.greeting import (
    Greeting,
    PacketKind,
    ProtocolError,
    Purpose,
    SessionRefused,
    offset_of,
    read_packet,
    write_packet,
)
from support.whole_run.regions import SimulatedRegions
from support.whole_run.virtual_loop import NumberedTask, VirtualLoop

PORT = 29400
_MOST_UNDERWAY = 4 << 20
_BYTES_PER_S = 5e3, 1e6
"""Of the slowest line for files, and of the fastest: a frame takes up to a cycle."""
_LEAST_WITH_REGIONS = 1e5
_NEAR_S = 0.002
_CURRENT: ContextVar[Process] = ContextVar("process")

Serve = Callable[["Stream", Greeting, Identity], Awaitable[None]]


def current() -> Process:
    """That of the task that asks."""
    return _CURRENT.get()


def current_or_none() -> Process | None:
    """That of the task that asks, if it is of one."""
    return _CURRENT.get(None)


@dataclass(eq=False)
class Process:
    """A process of a machine: its tasks and streams end with it."""

    machine: Machine
    name: str
    alive: bool = True
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    """A signal to leave has come."""
    streams: dict[Stream, None] = field(default_factory=dict["Stream", None])
    tasks: dict[asyncio.Task[Any], None] = field(default_factory=dict[asyncio.Task[Any], None])

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin work that is this process's."""
        context = Context()
        context.run(_CURRENT.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    async def kill(self) -> None:
        """At once: nothing that it says from now on is heard, and nothing of it is left."""
        self.alive = False
        for stream in [*self.streams]:
            stream.reset()
        while tasks := [task for task in self.tasks if not task.done() and task is not asyncio.current_task()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.01)


def task_of_process(loop: VirtualLoop, work: Any, **given: Any) -> asyncio.Task[Any]:
    """A task factory: who begins a task has it."""
    task = NumberedTask(work, loop, **given)
    context: Context | None = given.get("context")
    process = _CURRENT.get(None) if context is None else context.get(_CURRENT)
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(process.tasks.pop)
    return task


@dataclass
class Door:
    """Where a process listens."""

    process: Process
    serve: Serve
    carrying: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    """Its connections."""


class Room(enum.Enum):
    """What a disk takes."""

    FOR_ALL = "all"
    FOR_LITTLE = "little"
    """Entries, but no frames, no states and no snapshots."""
    FOR_NOTHING = "nothing"


@dataclass
class Machine:
    """That of a site."""

    name: str
    host: str
    up: bool = True
    door: Door | None = None
    """Of its port."""
    rank_server: Any = None
    room: Room = Room.FOR_ALL
    """On its disk."""
    changes_files: bool = False
    """The disk changes some of the frames and states that it is given."""
    takes_mail: bool = True
    """Others' ranks reach its own, and they others'."""
    is_damaged: bool = False
    """The disk has changed the journal, and no agent has a whole one since."""
    was_damaged: bool = False
    """It did so once; not all of that shows at once."""
    loses_hello: bool = False
    """Its lines to the leader break, each once the first words have come there."""


class SimulatedKeys:
    """What an agent needs of `Keys`."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.identity = Identity("simulated", machine.name)

    def check_peer(self, tls: Identity) -> Identity:
        """Who the other end is."""
        return tls


class Stream:
    """One end of a connection."""

    def __init__(self, lines: Lines, process: Process, peer: Identity, purpose: Purpose | None = None) -> None:
        """purpose: for which this end has dialed."""
        self._lines, self._process, self.purpose = lines, process, purpose
        self._loop = asyncio.get_running_loop()
        self.used_at = self._loop.time()
        """When it was made, or something was last sent or taken here."""
        self.is_for_files = purpose is Purpose.FETCH
        """What is small passes by it."""
        self.asks = False
        """It was sent, and nothing was taken since."""
        self.tls = peer
        self.other: Stream
        self._arrived = bytearray()
        self._ended: OSError | None = None
        self._closed = False
        self._news = asyncio.Event()
        self._underway = 0
        self._room = asyncio.Event()
        self._sent: deque[tuple[float, bytes | OSError]] = deque()
        self._last_at = 0.0
        process.streams[self] = None

    @property
    def own_host(self) -> str:
        """The address of this end."""
        return self._process.machine.host

    def send_with(self, congestion_control: str) -> None:
        """Nothing is paced."""

    async def write(self, content: bytes) -> None:
        """See TlsStream."""
        if self._closed or self._ended is not None:
            raise self._ended or ConnectionResetError("closed here")
        while self._underway > _MOST_UNDERWAY:
            self._room.clear()
            await self._room.wait()
        self._underway += len(content)
        self._send(content)
        if self.purpose is Purpose.RUN and self._process.machine.loses_hello:
            self.reset()
        await asyncio.sleep(0)

    async def read_exactly(self, size: int) -> bytes:
        """See TlsStream."""
        while len(self._arrived) < size:
            await self._wait()
        return self._take(size)

    async def read_line(self, most: int) -> bytes:
        """See TlsStream."""
        while (end := self._arrived.find(b"\n")) < 0:
            if len(self._arrived) > most:
                raise ConnectionAbortedError(f"the peer sent a line of more than {most} bytes")
            await self._wait()
        return self._take(end + 1)[:-1]

    def close(self) -> None:
        """See TlsStream."""
        self._end(ConnectionResetError("the peer closed the connection"))

    def reset(self) -> None:
        """Its process has ended."""
        self._end(ConnectionResetError("Connection reset by peer"))

    def _end(self, told: OSError) -> None:
        if not self._closed:
            self._closed = True
            self._process.streams.pop(self, None)
            if self._process.machine.up:  # else nobody hears of it
                self._send(told)
            self._news.set()
            self._room.set()

    def _take(self, size: int) -> bytes:
        self.used_at, self.asks = asyncio.get_running_loop().time(), False
        taken = bytes(self._arrived[:size])
        del self._arrived[:size]
        self.other._underway -= size
        self.other._room.set()
        return taken

    async def _wait(self) -> None:
        if self._closed:
            raise ConnectionResetError("closed here")
        if self._ended is not None:
            raise self._ended
        self._news.clear()
        await self._news.wait()

    def _send(self, what: bytes | OSError) -> None:
        size = len(what) if isinstance(what, bytes) else 0
        way = (self._process.machine.name, self.other._process.machine.name)
        self.asks = True
        self.used_at = now = asyncio.get_running_loop().time()
        takes = size / self._lines.bytes_per_s(*way) if self.is_for_files else 0.0
        self._last_at = max(self._last_at, now + self._lines.latency(*way)) + takes
        self._sent.append((self._last_at, what))
        if len(self._sent) == 1:
            self._loop.call_at(self._last_at, self._carry, context=Context())

    def _carry(self) -> None:
        """What was sent first comes to the other end."""
        here, there = self._process.machine, self.other._process.machine
        if not self._lines.reach(here.name, there.name):
            self._lines.once_healed(self._carry)
            return
        what = self._sent.popleft()[1]
        if not self.other._process.alive:
            if there.up and not isinstance(what, OSError) and self._ended is None:  # its kernel answers
                self._ended = ConnectionResetError("Connection reset by peer")
                self._news.set()
            return
        if isinstance(what, OSError):
            self.other._ended = self.other._ended or what
            self.other._news.set()
            self.other._room.set()
            return
        self._lines.heard(what)
        self.other._arrived += what
        self.other._news.set()
        if self._sent:
            self._loop.call_at(self._sent[0][0], self._carry, context=Context())


class Lines:
    """Which machines reach each other, each way by itself, and how long that takes."""

    def __init__(self, chance: random.Random, heard: Callable[[bytes], None], regions: SimulatedRegions) -> None:
        """heard: is told of all that arrives."""
        self.heard, self._chance, self._regions = heard, chance, regions
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._latencies: dict[frozenset[str], float] = {}
        self._rates: dict[frozenset[str], float] = {}
        self.more_s: dict[str, float] = {}
        """By machine: how much longer its lines take now."""
        self.slow: dict[str, float] = {}
        """By machine: the bytes per second of each of its lines for files now."""
        self._healed = asyncio.Event()
        self._then: list[Callable[[], None]] = []

    def latency(self, one: str, other: str) -> float:
        """Seconds that a byte takes now."""
        if one == other:
            return 0.0005
        least = self._latencies.setdefault(frozenset((one, other)), self._chance.uniform(0.01, 0.15))
        least = _NEAR_S if self._regions.are_near(one, other) else least
        return least * self._chance.uniform(1, 1.2) + self.more_s.get(one, 0.0) + self.more_s.get(other, 0.0)

    def bytes_per_s(self, one: str, other: str) -> float:
        """How much of a file a line carries now."""
        pair = frozenset((one, other))
        if one == other:
            return _BYTES_PER_S[1]
        if (usual := self._rates.get(pair)) is None:
            least, most = _BYTES_PER_S
            least = _LEAST_WITH_REGIONS if self._regions.groups else least
            least = most if self._regions.are_near(one, other) else least
            usual = self._rates[pair] = least * (most / least) ** self._chance.random()
        return min(usual, self.slow.get(one, usual), self.slow.get(other, usual))

    def reach(self, one: str, other: str) -> bool:
        """Whether what one sends comes to the other."""
        return self._cuts[one, other] == 0

    def cut(self, *ways: tuple[str, str]) -> None:
        """Nothing comes that way until as many heal."""
        self._cuts.update(ways)

    def heal(self, *ways: tuple[str, str]) -> None:
        """See cut."""
        for way in ways:
            self._cuts[way] = max(0, self._cuts[way] - 1)
        self._healed.set()
        self._healed = asyncio.Event()
        then, self._then = self._then, []
        for call in then:
            asyncio.get_running_loop().call_soon(call, context=Context())

    def once_healed(self, call: Callable[[], None]) -> None:
        """Call this after the next line has healed."""
        self._then.append(call)

    def heal_all(self) -> None:
        """All is reached."""
        self._cuts.clear()
        self.more_s.clear()
        self.slow.clear()
        self.heal()

    async def until_reached(self, one: str, other: str) -> None:
        """Wait for that."""
        while not self.reach(one, other):
            await self._healed.wait()


class World:
    """All machines. `dial` stands for that of `tunnel`."""

    def __init__(
        self, chance: random.Random, names: list[str], heard: Callable[[bytes], None], regions: SimulatedRegions
    ) -> None:
        self.lines = Lines(chance, heard, regions)
        self.machines = {name: Machine(name, f"10.0.0.{place + 1}") for place, name in enumerate(names)}
        self._by_host = {machine.host: machine for machine in self.machines.values()}

    async def dial(self, hub: Address, keys: SimulatedKeys, greeting: Greeting) -> tuple[Stream, int]:
        """See `tunnel.dial`."""
        process = current()
        async with asyncio.timeout(DIAL_LIMIT_S):
            there = self._by_host.get(hub.host)
            if there is None or hub.port != PORT:
                raise ConnectionRefusedError(f"nobody is at {hub}")
            here = process.machine
            for _ in range(2):  # TCP, then TLS
                await self._cross(here, there)
                await self._cross(there, here)
            door = there.door
            if not there.up:
                await asyncio.Event().wait()
            if door is None or not door.process.alive:
                raise ConnectionRefusedError(111, "Connection refused")
            own = Stream(self.lines, process, Identity("simulated", there.name), greeting.purpose)
            theirs = Stream(self.lines, door.process, keys.identity)
            theirs.is_for_files = own.is_for_files
            own.other, theirs.other = theirs, own
            door.carrying.add(carrying := door.process.start(_serve(door.serve, theirs, greeting, keys.identity)))
            carrying.add_done_callback(door.carrying.discard)
            try:
                kind, content = await read_packet(own)  # type: ignore[arg-type]
                if kind is PacketKind.REFUSED:
                    raise SessionRefused(content.decode(errors="replace"))
                if kind is not PacketKind.WELCOME:
                    raise ProtocolError(f"the hub answered with {kind.name}")
                return own, offset_of(content)
            except BaseException:
                own.close()
                raise

    async def _cross(self, one: Machine, other: Machine) -> None:
        await asyncio.sleep(self.lines.latency(one.name, other.name))
        await self.lines.until_reached(one.name, other.name)


async def _serve(serve: Serve, stream: Stream, greeting: Greeting, peer: Identity) -> None:
    """As `Doorway` does."""
    try:
        await serve(stream, greeting, peer)
    except (SessionRefused, KeysError, ProtocolError) as error:
        with contextlib.suppress(OSError):
            await write_packet(stream, PacketKind.REFUSED, str(error).encode()[:512])  # type: ignore[arg-type]
    except OSError:
        pass
    finally:
        stream.close()
