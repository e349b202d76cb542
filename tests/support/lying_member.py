"""A member of a run with real keys that speaks its messages, follows its journal, and lies in one field after another.

In between it offers a frame like everybody. It answers what other agents ask of it, too, and lies there as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import TypeAdapter

from geocomm.core.addresses import Address, listen_on
from geocomm.core.records import line_of
from geocomm.elastic.files.file_server import Asked, StatesAnswer
from geocomm.elastic.journal.entries import BadLineError
from geocomm.elastic.journal.message_lines import down_of
from geocomm.elastic.journal.messages import (
    PROTOCOL_VERSION,
    Beat,
    EntrySaid,
    Hello,
    Model,
    Open,
    Owner,
    RanksUp,
    ReadySaid,
    Up,
    Welcome,
)
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.leading.questions import AgentStanding, LeaderAnswer, Question
from geocomm.security.key_folder import Identity, Keys
from geocomm.wire.dial import dial
from geocomm.wire.doorway import Doorway
from geocomm.wire.file_ranges import RangeAnswer
from geocomm.wire.greeting import (
    Greeting,
    PacketKind,
    ProtocolError,
    Purpose,
    SessionRefused,
    offset_bytes,
    write_packet,
)
from geocomm.wire.tls_stream import TlsStream
from support.lies import Lie, kinds_of, lies, truth

UP, ASK, FETCH = (TypeAdapter[Any](one) for one in (Up, Question, Asked))
ANSWERS = [TypeAdapter[Any](one) for one in (RangeAnswer, StatesAnswer, AgentStanding, LeaderAnswer)]
CONTENT = b"c" * 1000
"""Of its frames."""
_HONESTY = 0.5
"""So often it gives a frame that it has offered, so that it may count."""
_OWN = {"promote"}
"""Questions that a site may ask its own agent alone."""


class LyingMember:
    """A context. Used in one event loop."""

    def __init__(self, keys: Keys, leader: Address, agents: Sequence[Address], model: Model, seed: int) -> None:
        """agents: of all other sites. model: that of the run."""
        self.site = keys.identity.site
        self.told = 0
        """Lies."""
        self.counted = 0
        """Frames of it, in rounds that it has heard of."""
        self._keys, self._leader, self._agents, self._model = keys, leader, agents, model
        self._random = random.Random(seed)
        self._store = uuid.UUID(int=self._random.getrandbits(128)).hex
        self._listener = listen_on("127.0.0.1:0")
        self._address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._tasks: list[asyncio.Task[None]] = []
        self._stream: TlsStream | None = None
        self._state = RunState()
        self._opened: Open | None = None
        self._answers = [lie for adapter in ANSWERS for lie in lies(adapter, "", self._known())]

    async def __aenter__(self) -> LyingMember:
        doorway = Doorway(self._listener, self._keys, self._answer, lambda _: None)
        self._tasks = [asyncio.create_task(doorway.serve())]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._lose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def all_lies(self) -> list[tuple[Purpose, Lie]]:
        """To the leader as a member, and to any agent as one that asks."""
        found = [(Purpose.RUN, lie) for kind in kinds_of(UP) for lie in lies(UP, kind, self._known())]
        for purpose, adapter in ((Purpose.ASK, ASK), (Purpose.FETCH, FETCH)):
            kinds = [kind for kind in kinds_of(adapter) if kind not in _OWN]
            known = self._known() | {"site": "nobody"}  # a site may have itself, or another one, removed
            found += [(purpose, lie) for kind in kinds for lie in lies(adapter, kind, known)]
        self._random.shuffle(found)
        return found

    async def tell(self, told: Iterable[tuple[Purpose, Lie]]) -> None:
        """Tell them one after the other."""
        for purpose, lie in told:
            self.told += 1
            with contextlib.suppress(OSError):
                async with asyncio.timeout(5):
                    if purpose is Purpose.RUN:
                        await self._say(lie)
                    else:
                        await self._ask(purpose, lie)

    async def _say(self, lie: Lie) -> None:
        """As a member of the run, which it becomes again where it is none."""
        if self._stream is None:
            await self._join()
        content = lie.content | {name: now for name, now in self._now().items() if name in lie.content}
        if len(lie.path) == 1:
            content[str(lie.path[0])] = lie.content[str(lie.path[0])]
        await self._write(json.dumps(content).encode())
        if lie.kind == "offer":
            await asyncio.sleep(0.2)  # so that it may be looked at

    async def _ask(self, purpose: Purpose, lie: Lie) -> None:
        agent = self._random.choice(self._agents)
        stream, _ = await dial(agent, self._keys, Greeting(purpose, bytes(16), 0, "lie"))
        with contextlib.closing(stream):
            await stream.write(json.dumps(lie.content).encode() + b"\n")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await stream.read_line(4 << 20)

    async def _join(self) -> None:
        greeting = Greeting(Purpose.RUN, bytes(16), 0, "run")
        self._stream, _ = await dial(self._leader, self._keys, greeting)
        self._state, self._opened = RunState(), None
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            geocomm="0",
            store=self._store,
            run=None,
            head=-1,
            head_hash=None,
            term=0,
            fetch=self._address,
        )
        welcomed = asyncio.Event()
        self._tasks.append(asyncio.create_task(self._hear(self._stream, welcomed)))
        await self._write(line_of(hello).encode())
        async with asyncio.timeout(5):
            await welcomed.wait()
        owner = Owner(id=self._store, host="127.0.0.1", port=self._listener.getsockname()[1])
        ranks = RanksUp(owners=(owner,), model=self._model, digests=("4" * 32,) * self._model.fragments)
        for message in (ranks, ReadySaid(), Beat(step=1, tokens=0, step_s=0.1, line_s=0, free_bytes=0)):
            await self._write(line_of(message).encode())

    async def _hear(self, stream: TlsStream, welcomed: asyncio.Event) -> None:
        """What the leader says, until it closes."""
        try:
            while True:
                line = await stream.read_line(1 << 20)
                down = down_of(line) if line else None
                if isinstance(down, Welcome):
                    welcomed.set()
                elif isinstance(down, EntrySaid):
                    self._state.apply(down.entry)
                    if down.entry.kind == "round":
                        self.counted += self.site in [one.site for one in down.entry.members]
                elif isinstance(down, Open):
                    self._opened = down
                    await self._write(json.dumps(truth(UP, "offer", self._known() | self._now())).encode())
        except (OSError, BadLineError):
            if self._stream is stream:
                self._lose()
        finally:
            stream.close()

    async def _write(self, line: bytes) -> None:
        if self._stream is None:
            raise ConnectionResetError("the leader has closed")
        await self._stream.write(line + b"\n")

    def _lose(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None

    async def _answer(self, stream: TlsStream, greeting: Greeting, peer: Identity) -> None:
        if greeting.purpose not in (Purpose.FETCH, Purpose.ASK):
            raise SessionRefused("not here")
        await write_packet(stream, PacketKind.WELCOME, offset_bytes(0))
        while True:
            line = await stream.read_line(64 << 10)
            if not line:
                raise ProtocolError("no question")
            if greeting.purpose is Purpose.FETCH and self._random.random() < _HONESTY:
                await stream.write(line_of(RangeAnswer(here=True, bytes=len(CONTENT))).encode() + b"\n" + CONTENT)
            else:
                await stream.write(json.dumps(self._random.choice(self._answers).content).encode() + b"\n")

    def _now(self) -> dict[str, Any]:
        """Where the run is."""
        if self._opened is None:
            return {}
        return {"fragment": self._opened.fragment, "version": self._opened.version, "attempt": self._opened.attempt}

    def _known(self) -> dict[str, Any]:
        return {
            "protocol": PROTOCOL_VERSION,
            "store": self._store,
            "run": None,
            "fetch": self._address,
            "leader": self._address,
            "id": self._store,
            "host": "127.0.0.1",
            "port": self._listener.getsockname()[1],
            "model": self._model.model_dump(),
            "digests": ["4" * 32] * self._model.fragments,
            "site": self.site,
            "frame": hashlib.sha256(CONTENT).hexdigest(),
            "weight": 4,
            "bytes": len(CONTENT),
            "coded_bytes": len(CONTENT),
            "step_s": 0.1,
        }
