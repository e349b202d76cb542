"""The files of fragments that an agent gives out to others, in ranges, over TLS (`file_ranges`)."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from geocomm.core.records import Record, Whole
from geocomm.elastic.files.fragment_store import FragmentStore, file_digest
from geocomm.elastic.journal.entries import Digest
from geocomm.elastic.journal.messages import OfRound, Wanted
from geocomm.wire.file_ranges import (
    MAX_FILE_BYTES,
    RangeAnswer,
    give_range,
    let_ask,
    line,
    next_question,
    while_alive,
)
from geocomm.wire.greeting import ProtocolError
from geocomm.wire.tls_stream import TlsStream

MOST_TAKERS = 2
"""Sites that are given states at a time. Who has one gives it on, so many newcomers have theirs sooner than if all
shared one line."""
_TAKES_S = 1.0
"""A site that has asked for no range of a state for this time has what it wanted, or is gone."""
_MAX_STATES = 500


class FrameAsked(Wanted):
    """A range of a frame."""

    kind: Literal["frame"] = "frame"
    bytes: Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)]
    """The size of the whole frame."""
    offset: Whole
    proxy: bool
    """Who has not got it, gets it from where it can first."""


class StateAsked(OfRound):
    """A range of a state."""

    kind: Literal["state"] = "state"
    offset: Whole


class StatesAsked(Record):
    """Which states there are of a fragment."""

    kind: Literal["states"] = "states"
    fragment: Whole
    head: int
    """Who does not know this entry of the journal may have states that it made void, and names none."""
    term: Whole
    """Nor does who follows an earlier leader: its states may be of rounds that the run does not have."""


Asked = Annotated[FrameAsked | StateAsked | StatesAsked, Field(discriminator="kind")]
_ASKED: TypeAdapter[Asked] = TypeAdapter(Asked)


class HeldState(Record):
    """A state that a site has on disk."""

    version: Whole
    bytes: Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)]
    digest: Digest


class StatesAnswer(Record):
    """All of them, the newest last."""

    states: Annotated[tuple[HeldState, ...], Field(max_length=_MAX_STATES)]


@dataclass
class _Taker:
    """A site that is given states."""

    ranges: int = 0
    """Under way."""
    last: float = -math.inf
    """When one ended last."""

    @property
    def takes(self) -> bool:
        return self.ranges > 0 or time.monotonic() - self.last < _TAKES_S


GetFrame = Callable[[Wanted], Awaitable[bool]]
"""Gets a frame from wherever this agent can; whether it is here then."""


class FileServer:
    """Gives out the files of a store. `journal`: index and term of its last entry. `get_frame`: for what others ask of
    this agent as a proxy; None: it is none."""

    def __init__(
        self, store: FragmentStore, journal: Callable[[], tuple[int, int]], get_frame: GetFrame | None = None
    ) -> None:
        self._store = store
        self._journal = journal
        self._get_frame = get_frame
        self._digests: dict[tuple[int, int, int], str] = {}
        """The digests of states, by fragment, version and the time at which the file was written."""
        self._under_way = 0
        self._asked_at = -math.inf
        self._takers: dict[str, _Taker] = {}
        """By site."""

    @property
    def idle_since(self) -> float:
        """Since when nobody has asked for anything, by the monotonic clock; now, while an answer is under way."""
        return time.monotonic() if self._under_way else self._asked_at

    async def serve(self, stream: TlsStream, site: str = "") -> None:
        """Answer one connection, of a site, until it ends. ProtocolError for what cannot be answered."""
        await let_ask(stream)
        while True:
            said = await next_question(stream)
            try:
                asked = _ASKED.validate_json(said)
                if isinstance(asked, StatesAsked):
                    head, term = self._journal()
                    states: tuple[HeldState, ...] = ()
                    if head >= asked.head and term >= asked.term:  # it may have to read them all
                        states = await while_alive(stream, asyncio.to_thread(self._states, asked.fragment))
                    await stream.write(line(StatesAnswer(states=states)))
                else:
                    await self._give(stream, asked, site)
            except ValueError as error:  # ValidationError, SiteNameError
                raise ProtocolError(f"not a question for files: {str(error)[:200]}") from None

    async def _path(self, asked: FrameAsked | StateAsked) -> Path:
        if isinstance(asked, StateAsked):
            return self._store.state_path(asked.fragment, asked.version)
        path = self._store.frame_path(**asked.named)
        if asked.proxy and self._get_frame is not None and not path.exists():
            await self._get_frame(Wanted.of(asked))
        return path

    async def _give(self, stream: TlsStream, asked: FrameAsked | StateAsked, site: str) -> None:
        taker = _Taker()
        if isinstance(asked, StateAsked):
            self._takers = {name: one for name, one in self._takers.items() if one.takes}
            if site not in self._takers and len(self._takers) >= MOST_TAKERS:
                await stream.write(line(RangeAnswer(here=True, bytes=0, busy=True)))
                return
            taker = self._takers.setdefault(site, taker)
        self._under_way += 1
        taker.ranges += 1
        try:
            await give_range(stream, await while_alive(stream, self._path(asked)), asked.offset)
        finally:
            self._under_way -= 1
            taker.ranges -= 1
            self._asked_at = taker.last = time.monotonic()

    def _states(self, fragment: int) -> tuple[HeldState, ...]:
        held: list[HeldState] = []
        for version in self._store.states(fragment)[-_MAX_STATES:]:
            path = self._store.state_path(fragment, version)
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                status = path.stat()
                key = (fragment, version, status.st_mtime_ns)
                if key not in self._digests:
                    self._digests[key] = file_digest(path, version)
                if not self._store.has_changed(fragment, version, self._digests[key]):
                    held.append(HeldState(version=version, bytes=status.st_size, digest=self._digests[key]))
        self._digests = {
            key: digest
            for key, digest in self._digests.items()
            if key[0] != fragment or key[1] in {state.version for state in held}
        }
        return tuple(held)
