"""What the hub and a tunnel read from each other first: any bytes are understood exactly, or refused."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from geocomm.wire import greeting
from geocomm.wire.greeting import Greeting, PacketKind, ProtocolError, offset_bytes, offset_of, read_packet
from support.effort import effort

properties = effort(200)
SIZE = Greeting.LAYOUT.size
HEAD = greeting._HEAD
GOOD = Greeting(next(iter(greeting.Purpose)), bytes(16), 0, "init-1").pack()


class Arrived:
    """What came over a connection that then ended."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0
        self.largest_read = 0

    async def read_exactly(self, count: int) -> bytes:
        """As TlsStream's."""
        self.largest_read = max(self.largest_read, count)
        if len(self.content) - self.at < count:
            raise ConnectionError("ended")
        self.at += count
        return self.content[self.at - count : self.at]


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """`content` with a few bytes changed."""
    changes = st.dictionaries(st.integers(0, len(content) - 1), st.integers(0, 255), max_size=4)
    return changes.map(lambda to: bytes(to.get(index, byte) for index, byte in enumerate(content)))


@properties
@given(st.one_of(st.binary(min_size=SIZE, max_size=SIZE), damaged(GOOD)))
@example(GOOD)
@example(GOOD[:30] + b"a\0b".ljust(32, b"\0"))
@example(GOOD[:30] + b"a" * 32)
def test_greeting_is_understood_exactly_or_refused(content: bytes) -> None:
    try:
        greeting = Greeting.unpack(content)
    except ProtocolError:
        return
    assert greeting.pack() == content
    assert Greeting.STORE_NAME.fullmatch(greeting.store)


@properties
@given(st.one_of(st.binary(max_size=64), st.builds(HEAD.pack, st.integers(0, 255), st.integers(0, 2**32 - 1))))
@example(HEAD.pack(PacketKind.DATA, 3) + b"abc")
@example(HEAD.pack(PacketKind.DATA, 16 * 1024 + 1) + bytes(20_000))
def test_packet_is_understood_exactly_or_refused_before_it_is_read(content: bytes) -> None:
    stream = Arrived(content)
    try:
        kind, payload = asyncio.run(read_packet(stream))  # type: ignore[arg-type]
    except ConnectionError:
        assert stream.largest_read <= 16 * 1024  # of what a peer claims
        return
    assert HEAD.pack(kind, len(payload)) + payload == content[: stream.at]


@properties
@given(st.binary(max_size=12))
def test_offset_has_eight_bytes(content: bytes) -> None:
    if len(content) == 8:
        assert offset_bytes(offset_of(content)) == content
    else:
        with pytest.raises(ProtocolError):
            offset_of(content)
