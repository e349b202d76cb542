"""The unix socket between the ranks of a site and their agent: `RankSocket` is a rank's end, `RankServer` the agent's.

Lines are those of `journal.messages`. A rank says RankHello at each connection; RankWelcome is the answer, and means
that nothing that was said or heard before counts on the agent's side.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from geocomm.core.addresses import check_peer_user, private_listener
from geocomm.core.message_log import CalmLog, logger
from geocomm.core.patience import comes, until_one_ends
from geocomm.core.records import line_of
from geocomm.elastic.journal.entries import EMPTY, BadLineError, Head
from geocomm.elastic.journal.message_lines import MAX_LINE_BYTES, down_of, said, up_of
from geocomm.elastic.journal.messages import Down, EntrySaid, RankHello, RankWelcome, Up
from geocomm.wire.accepting import accept_forever

RETRY_S = 0.2
"""How often a rank tries to reach its agent again."""
_MAX_UNSENT_BYTES = 16 << 20
_COMPLAINT_S = 60.0
_END_S = 15.0
"""The agent reads what a rank has said last within this time, on a busy machine too; one that does not live closes."""


class RankSocket:
    """A rank's connection to its agent, in an event loop of a thread of its own: no method waits for the agent.

    There is none before `start`. It comes back by itself when the agent was restarted. All methods may be called from
    any thread.
    """

    def __init__(self, path: str | Path, hello: Callable[[], RankHello], heard: Callable[[Down], None]) -> None:
        """Both are called on the thread. hello: at each connection, for the line that the rank begins it with. heard:
        with all that the agent says, in order; it must not wait.
        """
        self.path = str(path)
        """Where the agent listens."""
        self._hello, self._heard = hello, heard
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writer: asyncio.StreamWriter | None = None
        """Used on the thread."""
        self._closing, self._closed = False, asyncio.Event()
        self._head = EMPTY
        self._thread = threading.Thread(target=self._run, name="geocomm-agent", daemon=True)

    def start(self) -> None:
        """Connect, and hear what the agent says from now on."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    @property
    def connected(self) -> bool:
        """Whether the agent is there."""
        return self._writer is not None

    def say(self, up: Up) -> None:
        """Tell the agent. A line that finds no agent is dropped: after RankWelcome, say again what still holds."""
        if not self._closing:
            self._in_loop(self._write, line_of(up).encode() + b"\n")

    def close(self, limit_s: float = 2.0) -> None:
        """Send what was said, for at most `limit_s`, and end the connection: nothing more is heard. Idempotent."""
        self._closing = True
        self._in_loop(self._closed.set)
        if self._thread.is_alive():
            self._thread.join(limit_s)

    def _in_loop(self, call: Callable[..., None], *arguments: bytes) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(call, *arguments)

    def _write(self, content: bytes) -> None:
        if self._writer is not None:
            self._writer.write(content)

    def _run(self) -> None:
        with contextlib.closing(self._loop or asyncio.new_event_loop()) as loop:
            loop.run_until_complete(self._talk_until_closed())

    async def _talk_until_closed(self) -> None:
        complain = CalmLog(logger().warning, _COMPLAINT_S, 40)
        while not self._closed.is_set():
            try:
                await self._talk()
            except BadLineError as error:  # an agent of another version; the next may fit
                complain(f"the agent says what this rank does not understand ({self.path}): {error}")
            except OSError:
                pass
            except Exception:  # without this thread the rank would train on and never count again
                complain(f"the line to the agent is made anew ({self.path}): {traceback.format_exc()}")
            await comes(self._closed, RETRY_S)

    async def _talk(self) -> None:
        """One connection, until it ends or `close` is called and all is sent."""
        reader, writer = await asyncio.open_unix_connection(self.path, limit=MAX_LINE_BYTES)
        try:
            check_peer_user(writer.get_extra_info("socket"))
            hello = with_head(self._hello(), self._head)
            writer.write(line_of(hello).encode() + b"\n")
            self._writer = writer
            await until_one_ends(self._hear(reader), self._closed.wait())
            if self._closed.is_set():
                await _end(reader, writer)
        finally:
            self._writer = None
            writer.close()

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        async for line in reader:
            if not line.strip():
                continue
            down = down_of(line)
            self._head = newest_head(self._head, down)
            if not self._closing:
                self._heard(down)


def newest_head(known: Head, down: Down) -> Head:
    """Up to where a rank knows the run once it has heard this: what it begins with is as good as all entries until
    then."""
    match down:
        case EntrySaid():
            heard = Head(down.entry.index, down.entry.hash)
        case RankWelcome():
            heard = Head(down.head, down.head_hash)
        case _:
            return known
    return heard if heard.index > known.index else known


def with_head(hello: RankHello, known: Head) -> RankHello:
    """A rank's first line with what it knows: the agent may have cut its journal since then."""
    if known.index < 0:
        return hello
    return hello.model_copy(update={"head": known.index, "head_hash": known.hash})


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End a connection once the agent has read all: an agent whose own line cannot be written reads no more."""
    writer.transport.set_write_buffer_limits(0)
    await writer.drain()
    writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_S):
            while await reader.read(MAX_LINE_BYTES):
                pass


class RankConnection:
    """A rank that has said hello, as the agent sees it."""

    def __init__(self, writer: asyncio.StreamWriter, hello: RankHello) -> None:
        self.hello = hello
        self._writer, self._closing = writer, False

    def say(self, down: Down) -> None:
        """Tell the rank. One that reads nothing loses its connection, not the agent its memory."""
        if self._closing or self._writer.is_closing():
            return
        if self._writer.transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            self._writer.transport.abort()
            return
        self._writer.write(said(down).encode() + b"\n")

    def close(self) -> None:
        """Say nothing more. The rank ends the connection once it has heard all: one that writes to a connection which
        is closed here would lose what it has not read."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._writer.write_eof()


class RankServer:
    """The agent's end: serves one socket until cancelled. Used in one event loop."""

    def __init__(
        self,
        path: Path,
        came: Callable[[RankConnection], None],
        said: Callable[[RankConnection, Up], None],
        gone: Callable[[RankConnection], None],
        log: Callable[[str], None],
    ) -> None:
        self._path = path
        self._came, self._said, self._gone = came, said, gone
        self._log = CalmLog(log, _COMPLAINT_S, 40)

    async def serve(self, serving: Callable[[], None] = lambda: None) -> None:
        """Accept ranks until cancelled. `serving` is called once they can connect. OSError: the socket cannot be made,
        or may be another user's."""
        with private_listener(self._path) as listener:  # the run folder's lock says that no other agent lives
            serving()
            await accept_forever(listener, lambda rank, _: asyncio.create_task(self._serve_rank(rank)), self._log)

    async def _serve_rank(self, connection: socket.socket) -> None:
        rank = writer = None
        try:
            check_peer_user(connection)
            # A duplicate, since the writer closes its own once all is sent, after this task has ended.
            reader, writer = await asyncio.open_unix_connection(sock=connection.dup(), limit=MAX_LINE_BYTES)
            async for line in reader:
                up = up_of(line)
                if rank is not None:
                    self._said(rank, up)
                elif isinstance(up, RankHello):
                    rank = RankConnection(writer, up)
                    self._came(rank)
                else:
                    raise BadLineError(f"a rank began with {up.kind}")
        except ValueError as error:  # BadLineError, or asyncio's of a line that is too long
            self._log(f"ended the connection of a rank: {error}")
        except OSError:
            pass
        except Exception:
            self._log(f"ended the connection of a rank by an error of this program: {traceback.format_exc()}")
        finally:
            if writer is not None:
                writer.close()
            if rank is not None:
                self._gone(rank)
