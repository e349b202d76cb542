"""Ranges of files over a TLS connection: what all that give out files, and get them, have in common.

After the greeting, the side that dialed asks with a line of JSON, as often as it wants; the answer is a line of JSON
and, for a range of a file, its bytes. An answer that takes long has empty lines before it, one every BEAT_S: whoever
asked knows that somebody is at it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, ValidationError

from geocomm.core.records import Record, line_of
from geocomm.wire.greeting import PacketKind, ProtocolError, offset_bytes, write_packet
from geocomm.wire.tls_stream import TlsStream

RANGE_BYTES = 4 << 20
MAX_FILE_BYTES = 1 << 40
MAX_LINE_BYTES = 64 * 1024
PIECE_BYTES = 256 * 1024
BEAT_S = 3.0
SILENCE_S = 15.0
"""Whoever asked gives up an end that has said nothing for this time."""
IDLE_LIMIT_S = 60.0
"""An answering end gives up a connection on which nothing moves for this time."""
KEPT_S = 20.0
"""A connection on which nothing has moved for this time is not used again: the answering end may give it up."""
ANSWER_LIMIT_S = 600.0
"""What the other end works for an answer, at most: it may have to get a file from others first."""
_CONGESTION_CONTROL = "bbr"

_T = TypeVar("_T")
_R = TypeVar("_R", bound=Record)


class RangeAnswer(Record):
    """What there is from the offset on, up to RANGE_BYTES of it, follows."""

    here: bool
    bytes: Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)]
    """The size of the whole file."""
    busy: bool = False
    """Nothing follows: as many others are served as may be at a time."""


def line(record: Record) -> bytes:
    """A question or an answer, as it goes over the connection."""
    return line_of(record).encode() + b"\n"


async def let_ask(stream: TlsStream) -> None:
    """Welcome who dialed: it may ask for files."""
    stream.send_with(_CONGESTION_CONTROL)
    await write_packet(stream, PacketKind.WELCOME, offset_bytes(0))


async def next_question(stream: TlsStream) -> bytes:
    """The next line that is asked."""
    await asyncio.sleep(0)  # a flood leaves the others their turn
    async with asyncio.timeout(IDLE_LIMIT_S):
        return await stream.read_line(MAX_LINE_BYTES)


async def next_answer(stream: TlsStream, kind: type[_R], what: str, most: int = MAX_LINE_BYTES) -> _R:
    """The answer to a question for `what`, a line of at most so many bytes. TimeoutError, in words: the other end has
    been silent, as it is where its machine has ended; or ANSWER_LIMIT_S are over. ProtocolError: it is no answer."""
    loop, said = asyncio.get_running_loop(), b""
    end = loop.time() + ANSWER_LIMIT_S
    try:
        while not said:
            async with asyncio.timeout(min(SILENCE_S, end - loop.time())):
                said = await stream.read_line(most)
    except TimeoutError:
        limit_s = SILENCE_S if loop.time() < end else ANSWER_LIMIT_S
        raise TimeoutError(f"no answer within {limit_s:g} s to the question for {what}") from None
    try:
        return kind.model_validate_json(said)
    except ValidationError as error:
        raise ProtocolError(f"not an answer about files: {error.errors()[0]['msg']}") from None


async def while_alive(stream: TlsStream, work: Awaitable[_T]) -> _T:
    """What work for an answer comes to. Whoever asked hears meanwhile that this end lives."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=BEAT_S)
            if not task.done():
                async with asyncio.timeout(IDLE_LIMIT_S):
                    await stream.write(b"\n")
        return task.result()
    finally:
        task.cancel()


async def give_range(stream: TlsStream, path: Path, offset: int, count: int = RANGE_BYTES) -> None:
    """Answer with so many bytes of a file, RANGE_BYTES at most; or that it is not here."""
    try:
        size, content = await while_alive(stream, asyncio.to_thread(_read_range, path, offset, count))
    except OSError:
        await stream.write(line(RangeAnswer(here=False, bytes=0)))
        return
    await stream.write(line(RangeAnswer(here=True, bytes=size)))
    for start in range(0, len(content), PIECE_BYTES):
        async with asyncio.timeout(IDLE_LIMIT_S):
            await stream.write(content[start : start + PIECE_BYTES])


def _read_range(path: Path, offset: int, count: int) -> tuple[int, bytes]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(offset)
        return size, file.read(min(count, RANGE_BYTES))
