"""The leader of a run: carries the sites' lines to the `Sequencer`, and what it decides to the journal and the sites.

It is a part of the agent at the address that all sites name, or stands alone there.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import secrets
import sqlite3
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING

from geocomm.core.addresses import Address, AddressError
from geocomm.core.bad_input import BadInput
from geocomm.core.patience import RunningClock, Waiting, until_one_ends
from geocomm.core.units import count_text, named_text
from geocomm.data.deal_records import DealtSet
from geocomm.elastic.files.known_agents import KnownAgents
from geocomm.elastic.files.snapshots import forget
from geocomm.elastic.journal.admission import are_most, holders, members_of
from geocomm.elastic.journal.entries import BadLineError, Entry, Kept, words
from geocomm.elastic.journal.journal import HeadMovedError, SqliteJournal
from geocomm.elastic.journal.message_lines import OtherProtocolError, journal_said, said, up_of
from geocomm.elastic.journal.messages import Hello, Refused, Up
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.journal.sequencer import Sequencer
from geocomm.elastic.journal.sequencer_events import (
    Action,
    Append,
    Came,
    Close,
    DataRead,
    Ended,
    Event,
    LeaderSettings,
    Log,
    Remove,
    Said,
    Send,
    SendEntries,
    Tick,
    Unbelieved,
)
from geocomm.elastic.leading.agent_link import LineStream
from geocomm.elastic.leading.etcd import EtcdAwayError, EtcdJournal
from geocomm.wire.greeting import PacketKind, offset_bytes, write_packet
from geocomm.wire.tls_stream import TlsStream

if TYPE_CHECKING:
    from geocomm.data.dealt_version import ReadVersion
    from geocomm.elastic.journal.run_data import RunData

TICK_S = 0.25
_LOOKED_AT_EVERY_S, _RETRIED_AFTER_S = 60.0, 5.0
"""The catalog, for newer versions; and one that cannot be read."""
MOST_UNDONE = 10_000
"""Actions that wait for etcd. Sites say again what they said, so that a leader that begins anew has lost nothing."""


class LeaderChanged(Exception):
    """Another site leads from now on, or this one: the agent begins anew from its run folder, in the same process."""


class Leader:
    """Leads the run of a journal, which it alone appends to. Used in one event loop."""

    def __init__(
        self,
        journal: SqliteJournal,
        terms: LeaderSettings,
        fetch: str,
        known: KnownAgents,
        log: Callable[[str], None],
        shared: EtcdJournal | None = None,
        term: int = 0,
    ) -> None:
        """`fetch` is the host:port of the agent that this leader is a part of. shared: where an entry is to be before
        it is in `journal`; it may block, and be away. term: in which an empty journal begins."""
        self.questioned = asyncio.Event()
        """A site says that another one leads: its agent may say who."""
        self._journal, self._shared = journal, shared
        self._undone: collections.deque[tuple[Action, LineStream | None]] = collections.deque()
        """With the connection that it is for: what waits for an entry to be in the shared journal."""
        self._news = asyncio.Event()
        self._terms = terms
        self._catalog: RunData | None = None
        """The run's data set, as it was read last."""
        self._known, self._log = known, log
        self.entries, self.commit_seconds = 0, 0.0
        """Entries that were committed so far, and how long that took."""
        state = journal.state()
        state.term = max(state.term, term)
        start = known.next_start()
        self.sequencer = Sequencer(
            state, terms, journal.hash_at, lambda: secrets.token_hex(16), fetch, start, shared=shared is not None
        )
        self._clock = RunningClock(asyncio.get_running_loop().time)
        """A leader that was stopped finds nobody silent for that."""
        self._sessions: dict[str, LineStream] = {}
        self._works: set[asyncio.Task[None]] = set()
        self._newcomers: dict[str, LineStream] = {}
        """By site: the last connection that has said nothing yet."""
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def state(self) -> RunState:
        """The run as the journal says it."""
        return self.sequencer.state

    def seconds(self) -> float:
        """Now, on the clock of the sequencer's times: not the event loop's, since it stands while this process does."""
        return self._clock()

    async def lead(self) -> None:
        """Watch the clock until cancelled. Raises what kept the journal from being written: this leader has ended."""
        await until_one_ends(self._failed, self._tick(), self._do_in_turn(), self._watch_catalog())

    async def serve_site(self, stream: TlsStream, site: str) -> None:
        """Carry a connection of a site's agent to its end."""
        await write_packet(stream, PacketKind.WELCOME, offset_bytes(0))
        lines = LineStream(stream)
        if (before := self._newcomers.pop(site, None)) is not None:
            before.end()
        self._newcomers[site] = lines
        try:
            await lines.carry(lambda line: self._said(site, lines, line))
        finally:
            if self._newcomers.get(site) is lines:
                del self._newcomers[site]
            if self._sessions.get(site) is lines:
                del self._sessions[site]
                self._on(Ended(site))

    def others_connected(self, site: str) -> list[str]:
        """The sites that a connection stands to, but for this one."""
        return sorted(name for name, one in self.sequencer.sites.items() if one.connected and name != site)

    def remove(self, site: str, why: str) -> str:
        """End a site's part in the run. Why that cannot be; empty: it is done."""
        if site not in self.state.sites:
            return f"the run has no site {site}; it has {', '.join(sorted(self.state.sites)) or 'none'}"
        self._on(Remove(site, why))
        return ""

    async def sent(self, limit_s: float) -> None:
        """Return once all sites have been sent what was said to them and have closed, or after `limit_s`."""
        for lines in self._sessions.values():
            lines.end()
        end = asyncio.get_running_loop().time() + limit_s
        while self._sessions and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.05)

    async def _tick(self) -> None:
        waiting = Waiting(self._log)
        while True:
            await asyncio.sleep(TICK_S)
            self._on(Tick())
            if missing := sorted(self._terms.wait_for - set(self.state.live)) if not any(self.state.versions) else []:
                waiting.tell(lambda missing=missing: f"{named_text('site', missing)} to be ready, for the first round")
            elif 0 < len(live := self.state.live) < self._terms.min_sites:
                waiting.tell(
                    lambda live=live: (
                        f"{count_text(self._terms.min_sites, 'site')} to be ready, as --min-sites says, "
                        f"before a round counts: there "
                        f"{'is' if len(live) == 1 else 'are'} {', '.join(live)}"
                    )
                )

    async def _watch_catalog(self) -> None:
        """Tell the sequencer of the run's data set, and of newer versions of it. Its files are read in a thread."""
        told = ""
        while True:
            if (asked := self.state.data_in_force or self._terms.data) is not None:
                before, problem = self._catalog, ""
                versions = {one.number: one.sha256 for one in self.state.data.values()}
                try:
                    self._catalog = await asyncio.to_thread(read_data, asked, versions, before)
                    if self._catalog is not before:
                        self._on(DataRead(self._catalog))
                except (BadInput, OSError) as error:
                    goes_on = "no site is dealt more" if before is None else f"version {before.number} goes on"
                    problem = f"the run's data set cannot be read ({error}): until it can, {goes_on}"
                if problem and problem != told:
                    self._log(problem)
                told = problem
            await asyncio.sleep(_RETRIED_AFTER_S if self._catalog is None else _LOOKED_AT_EVERY_S)

    def _said(self, site: str, lines: LineStream, line: bytes) -> None:
        if lines not in (self._newcomers.get(site), self._sessions.get(site)):
            return  # another connection of the site has come
        try:
            up = up_of(line)
        except OtherProtocolError as error:
            lines.say(said(Refused(why=words(f"{site}: {error}"))))
            lines.end()
            return
        if isinstance(up, Hello) and up.fetch:
            try:
                Address.parse(up.fetch)  # all others hear that they shall look there
            except AddressError as error:
                raise BadLineError(f"where {site} gives out files: {error}") from None
        if self._newcomers.get(site) is lines and not self._takes_in(site, lines, up):
            return
        if isinstance(up, Hello):
            self._known.learn(site, up.fetch)
        self._on(Said(site, up))

    def _takes_in(self, site: str, lines: LineStream, first: Up) -> bool:
        """A connection has said its first line. Whether it takes the place of the one before; else it hears why."""
        del self._newcomers[site]
        if not isinstance(first, Hello):
            raise BadLineError(f"{site} began with {first.kind}")
        if refused := self.sequencer.turned_away(site, first, self.seconds()):
            if refused.blames == "site":
                self._log(f"refused: {refused.why}")
            lines.say(said(refused))
            lines.end()
            return False
        if (before := self._sessions.pop(site, None)) is not None:
            before.end()
        self._sessions[site] = lines
        self._on(Came(site))
        return True

    def _on(self, event: Event) -> None:
        if self._failed.done():
            return
        try:
            for action in self._decided(event):
                if self._shared is None:
                    self._do(action)
                else:
                    self._undone.append((action, self._connection_of(action)))
                    self._news.set()
            if len(self._undone) > MOST_UNDONE:
                self._failed.set_exception(
                    LeaderChanged(
                        f"{self._shared} has been away for so long that this agent begins anew from its journal"
                    )
                )
            if not self._undone:
                self._journal.keep(self.state)
            if self.sequencer.superseded:
                self.sequencer.superseded = False
                self.questioned.set()
        except Exception as error:
            # What the sequencer believes is not in the journal, or is not to be trusted: the next one reads it anew.
            self._failed.set_exception(error)

    def _decided(self, event: Event) -> list[Action]:
        """What is to be done upon an event. What the sequencer cannot take of a site ends that site's connection: what
        it believed before is not less true."""
        now = self.seconds()
        try:
            return self.sequencer.on(event, now)
        except Exception as error:
            if not isinstance(event, Said):
                raise
            told = traceback.format_exc()
            self._log(f"an error of this program upon what site {event.site} said ({event.message.kind}): {told}")
            return self.sequencer.on(Unbelieved(event.site, f"what it said cannot be taken: {error!r}"), now)

    def _connection_of(self, action: Action) -> LineStream | None:
        return self._sessions.get(action.site) if isinstance(action, Send | SendEntries | Close) else None

    async def _do_in_turn(self) -> None:
        """Carry out what waits for the shared journal. The sites' lines are taken meanwhile."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._undone:
                action, lines = self._undone.popleft()
                if isinstance(action, Append):
                    await self._share(action.entry)
                if self._connection_of(action) is lines:  # else a later one of the site has come
                    self._do(action)

    async def _share(self, entry: Entry) -> None:
        if self._shared is None:
            return
        waiting, written = Waiting(self._log), False
        while not written:
            try:
                with self._counted():
                    await asyncio.to_thread(self._shared.append, entry, self._journal.head)
                written = True
            except EtcdAwayError as error:
                waiting.tell(
                    lambda error=error: (
                        f"{self._shared} to take entry {entry.index} ({error}): rounds stand still, and training "
                        "goes on meanwhile"
                    )
                )
                await asyncio.sleep(1)
            except HeadMovedError as error:
                raise LeaderChanged(str(error)) from None
        if isinstance(entry, Kept) and self._most_have(entry.snapshot - 1):
            try:
                await asyncio.to_thread(self._shared.forget, entry.snapshot)
            except EtcdAwayError as error:
                self._log(
                    f"{self._shared} still has the entries before {entry.snapshot} ({error}), until a later snapshot"
                )

    def _most_have(self, index: int) -> bool:
        """Whether most members have all up to this entry. --copies may be fewer, whose disks may be lost."""
        return are_most(holders(self.sequencer.sites, index), members_of(self.state))

    def _looked_at(self, lines: Iterator[str]) -> Iterator[str]:
        """Lines of the journal. Where they cannot be read, the next agent looks at all of the file."""
        try:
            yield from lines
        except (BadLineError, sqlite3.Error) as error:
            if not self._failed.done():
                self._failed.set_exception(error)
            raise ConnectionAbortedError("the leader's journal is damaged") from None

    @contextlib.contextmanager
    def _counted(self) -> Generator[None]:
        """Count the time of what is done within as that of a commit."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.commit_seconds += time.monotonic() - began

    def _do(self, action: Action) -> None:
        match action:
            case Append():
                with self._counted():
                    self._journal.append(action.entry, self._journal.head)
                self.entries += 1
                if isinstance(action.entry, Kept):
                    forgetting = asyncio.create_task(forget(self._journal.path, self.state, self._log))
                    self._works.add(forgetting)
                    forgetting.add_done_callback(self._works.discard)
            case Send():
                if (lines := self._sessions.get(action.site)) is not None:
                    lines.say(said(action.message))
            case SendEntries():
                if (lines := self._sessions.get(action.site)) is not None:
                    lines.say_all(self._looked_at(journal_said(self._journal, action.first)))
            case Close():
                if (lines := self._sessions.pop(action.site, None)) is not None:
                    lines.end()
            case Log():
                self._log(action.text)


def read_data(of: DealtSet, versions: Mapping[int, str], known: RunData | None) -> RunData:
    """The newest version of a data set, and those that deals are of: SHA-256 by number. It is `known`, where
    that is the same; else only new versions are read. It may take seconds. Raises BadInput, OSError."""
    from geocomm.data.catalog import Catalog  # these bring numpy, which most agents do without
    from geocomm.data.dealt_version import ReadVersion
    from geocomm.elastic.journal.run_data import RunData

    catalog = Catalog(of.set)
    before: Mapping[int, ReadVersion] = {} if known is None else known.versions
    numbers = catalog.numbers()
    wanted = {*versions, *numbers[-1:]} or {1}
    if known is not None and wanted <= before.keys() and max(wanted) == known.number:
        return known
    found = {number: before.get(number) or ReadVersion.read(catalog, number) for number in wanted}
    for number, sha256 in versions.items():
        found[number].require(sha256)
    return RunData(found, of)
