"""The collector of a node: takes reports of its ranks and of other sites, keeps them, and passes its ranks' on.

Nothing waits for it. What comes too fast, or cannot be kept or sent, is dropped and counted: the newest reports win.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sqlite3
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from geocomm.core.addresses import Address, peer_process, private_listener
from geocomm.core.message_log import CalmLog
from geocomm.core.patience import Waiting, for_ever, pauses
from geocomm.core.run_dir import RunDir
from geocomm.metrics.own_counters import keep_counters
from geocomm.metrics.report_sender import MAX_PACKED_BYTES
from geocomm.observe.telemetry.report import (
    MOST_TOGETHER,
    BadReportError,
    Report,
    ReportLine,
    ReportPacker,
    ReportUnpacker,
)
from geocomm.observe.telemetry.run_store import RunStore
from geocomm.security.key_folder import Keys, KeysError
from geocomm.wire.accepting import accept_forever, serve_streams
from geocomm.wire.dial import dial
from geocomm.wire.greeting import Greeting, ProtocolError, Purpose, SessionRefused
from geocomm.wire.tls_stream import TlsStream

MOST_AT_ONCE = 64
"""Reports of a rank that a collector takes at once: those that waited while a line was down."""
MOST_WAITING_BYTES = 64 << 20


class WaitingReports:
    """A queue, of ranks in the order in which they reported."""

    def __init__(self, most_bytes: int = MOST_WAITING_BYTES) -> None:
        self._most_bytes = most_bytes
        self._turns: deque[tuple[str, int]] = deque()
        """A rank for each report that waits."""
        self._of_rank: defaultdict[tuple[str, int], deque[bytes]] = defaultdict(deque)
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, line: ReportLine) -> int:
        """Put a report behind the others. Returns how many had to go for it, older ones."""
        rank, gone = (line.report.site, line.report.rank), 0
        own = self._of_rank[rank]
        if len(own) == MOST_AT_ONCE:
            self._bytes -= len(own.popleft())
            gone = 1
        else:
            self._turns.append(rank)
        own.append(line.text)
        self._bytes += len(line.text)
        while self._bytes > self._most_bytes and len(self._turns) > 1:
            self._take_one()
            gone += 1
        return gone

    def take(self) -> list[bytes]:
        """The next lines to send together; none: nothing waits."""
        return [self._take_one() for _ in range(min(len(self._turns), MOST_TOGETHER))]

    def clear(self) -> None:
        """Forget all."""
        self._turns.clear()
        self._of_rank.clear()
        self._bytes = 0

    def _take_one(self) -> bytes:
        rank = self._turns.popleft()
        own = self._of_rank[rank]
        text = own.popleft()
        self._bytes -= len(text)
        if not own:
            del self._of_rank[rank]
        return text


MOST_RANKS_OF_A_SITE = 4096
SHORTEST_INTERVAL_S = 0.2
"""Reports of a rank that come faster, after MOST_AT_ONCE of them, are dropped."""
_THIN_S = 60.0
_PAUSES_S = (1.0, 10.0)
_WRITE_LIMIT_S = 15.0
_RETRY_S = 1.0
_LOOK_S = 0.05
_GATHER_S = 0.1
"""The ranks of a machine report at the same moment: they wait for each other, to be compressed together."""
_READ_BYTES = 64 << 10
_SITE_LINE_BYTES = 128
_LOG_INTERVAL_S = 60.0


@dataclass
class Counts:
    """What became of the reports that came."""

    kept: int = 0
    refused: int = 0
    """They were no reports, or of another site than the sender's."""
    dropped: int = 0
    """They came too fast, or could be neither kept nor sent."""


class Collector:
    """Serves the sockets of one folder. Used in one event loop."""

    def __init__(
        self,
        folder: Path,
        site: str | None,
        store: RunStore | None,
        keys: Keys | None,
        upstream: Callable[[], Address | None],
        log: Callable[[str], None],
    ) -> None:
        """folder: of the sockets. site: this one; None: ranks of any. store: None: reports are passed on alone.
        upstream: where to, now; None: nowhere."""
        self.counts = Counts()
        self._folder, self._site, self._store, self._keys = folder, site, store, keys
        self._upstream, self._log = upstream, CalmLog(log, _LOG_INTERVAL_S, 40)
        self._paid_until: dict[tuple[str, int], float] = {}
        self._told_refusals: set[str] = set()
        """Senders of which the log has said that their reports are refused."""
        self._waiting = WaitingReports()
        self._news = asyncio.Event()
        self._reporting: set[asyncio.Task[None]] = set()
        """Connections of this machine's processes."""
        self._sends = self._reaches = False
        """Whether what waits is being sent; whether the other end is reached."""

    async def last_reports(self, least_s: float, most_s: float) -> None:
        """Return once the processes of this machine have ended, and what they reported last is kept and passed on: as
        long as that takes on a busy machine, within these limits. Where nobody is reached it is not passed on."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        while (since := clock() - begun) < most_s:
            if since >= least_s and not self._reporting and not (self._reaches and (self._sends or self._waiting)):
                return
            await asyncio.sleep(_LOOK_S)

    async def serve(self) -> None:
        """Until cancelled. OSError: the sockets cannot be made."""
        with (
            private_listener(RunDir(self._folder).rank_socket, socket.SOCK_SEQPACKET) as ranks,
            private_listener(RunDir(self._folder).collector_socket) as sites,
        ):
            works = {
                "what drops old telemetry": self._thin_forever,
                "what passes reports on": self._pass_on_forever,
                "what counts reports": lambda: keep_counters(self._folder, "collector", self._counted),
            }
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(accept_forever(ranks, self._begin_rank, self._log))
                tasks.create_task(serve_streams(sites, self._serve_site, self._log))
                for what, work in works.items():
                    tasks.create_task(for_ever(what, work, self._log))

    def _counted(self) -> dict[str, float]:
        return {f"collector_reports_{name}": number for name, number in asdict(self.counts).items()}

    def _begin_rank(self, connection: socket.socket, _: object) -> asyncio.Task[None]:
        connection.setblocking(False)
        task = asyncio.create_task(self._serve_rank(connection))
        self._reporting.add(task)
        task.add_done_callback(self._reporting.discard)
        return task

    async def _serve_rank(self, connection: socket.socket) -> None:
        """Reports of a process of this machine, until it ends."""
        sender, loop = f"process {peer_process(connection)} of this machine", asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while content := await loop.sock_recv(connection, MAX_PACKED_BYTES + 1):
                if (line := self._read(content, sender)) is not None:
                    self._pass_on_later(self._keep([line]))
                await asyncio.sleep(0)  # a flood leaves the others their turn

    def _read(self, content: bytes, sender: str) -> ReportLine | None:
        try:
            line = ReportLine.unpack(content)
        except BadReportError as error:
            self._refuse(sender, str(error))
            return None
        if self._site is not None and line.report.site != self._site:
            self._refuse(sender, f"it says that it is of site {line.report.site}, and this is {self._site}")
            return None
        return line

    async def _serve_site(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reports of another site, or of another node of this one, which the hub or leader has made sure of."""
        site, unpacker = "", ReportUnpacker()
        try:
            site = (await reader.readuntil(b"\n"))[:_SITE_LINE_BYTES].decode().strip()
            while content := await reader.read(_READ_BYTES):
                for lines in unpacker.take(content):
                    for line in lines:
                        if line.report.site != site:
                            raise BadReportError(f"it reports for site {line.report.site}")
                    kept = self._keep(lines)
                    if site == self._site:  # they are of its other nodes
                        self._pass_on_later(kept)
                    await asyncio.sleep(0)  # a flood leaves the others their turn
        except (BadReportError, UnicodeDecodeError) as error:
            self._refuse(f"site {site}", str(error))
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass

    def _pass_on_later(self, lines: Sequence[ReportLine]) -> None:
        self.counts.dropped += sum(map(self._waiting.add, lines))
        if lines:
            self._news.set()

    def _refuse(self, sender: str, why: str) -> None:
        """Count it. Of each sender the log says it once."""
        self.counts.refused += 1
        if sender not in self._told_refusals and len(self._told_refusals) < MOST_RANKS_OF_A_SITE:
            self._told_refusals.add(sender)
            self._log(f"telemetry of {sender} is refused: {why}; what is refused later is counted alone")

    def _keep(self, lines: Sequence[ReportLine]) -> list[ReportLine]:
        """Store the lines that came in time, and are not too many. They are stored together, or not at all."""
        kept = [line for line in lines if self._in_time(line.report)]
        if self._store is not None and kept:
            try:
                self._store.add([line.report for line in kept], time.time())
                self.counts.kept += len(kept)
            except sqlite3.Error as error:
                self.counts.dropped += len(kept)
                self._log(f"telemetry is not kept in {self._store.path}: {error}; training goes on. Free room there")
        return kept

    def _in_time(self, report: Report) -> bool:
        now, key = time.monotonic(), (report.site, report.rank)
        paid_until = self._paid_until.get(key)
        if paid_until is None and sum(site == report.site for site, _ in self._paid_until) >= MOST_RANKS_OF_A_SITE:
            self._refuse(f"site {report.site}", f"it has more than {MOST_RANKS_OF_A_SITE} ranks")
            return False
        paid_until = max(now, paid_until or now)
        most = MOST_AT_ONCE - 1 + report.final  # one is left for the last report of a process
        if paid_until - now > most * SHORTEST_INTERVAL_S:
            self.counts.dropped += 1
            return False
        self._paid_until[key] = paid_until + SHORTEST_INTERVAL_S
        return True

    async def _thin_forever(self) -> None:
        while True:
            await asyncio.sleep(_THIN_S)
            if self._store is not None:
                try:
                    self._store.thin(time.time(), 10 * _THIN_S)
                except sqlite3.Error as error:
                    self._log(f"old telemetry in {self._store.path} cannot be dropped: {error}")

    async def _pass_on_forever(self) -> None:
        """The other end comes up together with this one, and may move: what stays away is told of, after a time."""
        waits, waiting = pauses(*_PAUSES_S), Waiting(self._log)
        while True:
            target = self._upstream()
            if target is None or self._keys is None:
                self._waiting.clear()
                await asyncio.sleep(_PAUSES_S[0])
                waiting = Waiting(self._log)
                continue
            reason = "it closed the connection"
            try:
                stream, _ = await dial(target, self._keys, Greeting(Purpose.TELEMETRY, bytes(16), 0, "telemetry"))
                waits = pauses(*_PAUSES_S)
                try:
                    await self._pass_on(stream, target)
                finally:
                    waiting = Waiting(self._log)
            except (SessionRefused, KeysError, ProtocolError) as error:
                reason = str(error)
            except OSError as error:
                reason = str(error) or "silent"
            waiting.tell(
                lambda to=target, why=reason: f"{to} to take this site's telemetry ({why}); training goes on meanwhile"
            )
            await asyncio.sleep(next(waits))

    async def _pass_on(self, stream: TlsStream, target: Address) -> None:
        """Over one connection, until it is lost (OSError), or another target is named."""
        stream.retry_each(_RETRY_S)
        packer = ReportPacker()
        self._reaches = True
        try:
            while self._upstream() == target:
                self._news.clear()
                while lines := self._waiting.take():
                    self._sends = True
                    self.counts.dropped += len(lines)  # unless all of it goes
                    async with asyncio.timeout(_WRITE_LIMIT_S):
                        await stream.write(packer.pack(lines))
                    self.counts.dropped -= len(lines)
                self._sends = False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PAUSES_S[0]):
                        await self._news.wait()
                        await asyncio.sleep(_GATHER_S)
        finally:
            self._sends = self._reaches = False
            stream.close()
