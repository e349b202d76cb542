"""A connection of torch's store, carried over TLS connections that may drop: what both ends of it do.

torch's store client never reconnects: when its connection breaks, the store is lost to that process. So the loopback
connections at both ends stay open while the TLS connection between them is replaced, and what the other end has not
acknowledged is sent again.

After Hello (see Greeting) both directions carry packets: a byte of kind, four of length, the content. Integers are
little-endian.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import re
import struct
from dataclasses import dataclass
from typing import Self

from geocomm.core.patience import until_one_ends
from geocomm.group.rendezvous.tls_stream import TlsStream

WINDOW_BYTES = 1 << 20
"""Each end keeps at most so much (and one read) that the other has not acknowledged."""
HEARTBEAT_S = 5.0
SILENCE_LIMIT_S = 15.0
"""A connection that brought nothing for this time is given up."""
RESUME_LIMIT_S = 300.0
"""How long a session waits for another connection."""

_MAX_PACKET_BYTES = 16 * 1024
_HEAD = struct.Struct("<BI")
_OFFSET = struct.Struct("<Q")


class ProtocolError(ConnectionError):
    """The peer sent what it must not; its session is over."""


class SessionRefused(ConnectionError):
    """The hub will not have this session; the message is its reason."""


class PacketKind(enum.IntEnum):
    """What a packet says."""

    WELCOME = 1  # the bytes that the hub had of this session
    REFUSED = 2  # a text, and nothing after it
    DATA = 3
    ACK = 4  # all bytes up to this offset
    PING = 5
    END = 6  # no more DATA from here


class Purpose(enum.IntEnum):
    """What a connection is made for."""

    PROBE = 0  # to see that it can be made
    BEGIN = 1
    RESUME = 2
    RUN = 3  # an agent of an elastic run, to its leader
    FETCH = 4  # one that wants files
    ASK = 5  # a person who wants to know how the run does, or to change it
    TELEMETRY = 6  # a node that reports what its ranks say of themselves


@dataclass(frozen=True)
class Greeting:
    """The first bytes of a connection, from the tunnel to the hub: which session, and what the tunnel had of it."""

    purpose: Purpose
    session: bytes
    received: int
    store: str

    MAGIC = b"GCHB"
    VERSION = 1
    LAYOUT = struct.Struct("<4sBB16sQ32s")
    STORE_NAME = re.compile(r"[a-z0-9-]{1,32}")

    def pack(self) -> bytes:
        name = self.store.encode().ljust(32, b"\0")
        return self.LAYOUT.pack(self.MAGIC, self.VERSION, self.purpose, self.session, self.received, name)

    @classmethod
    def unpack(cls, content: bytes) -> Self:
        """ProtocolError for anything but a greeting."""
        magic, version, purpose, session, received, name = cls.LAYOUT.unpack(content)
        store = name.rstrip(b"\0").decode("ascii", "replace")
        if magic != cls.MAGIC or not cls.STORE_NAME.fullmatch(store) or purpose not in list(Purpose):
            raise ProtocolError("the peer is not a tunnel of geocomm")
        if version != cls.VERSION:
            raise ProtocolError(f"the peer speaks version {version} of the hub's protocol, this is {cls.VERSION}")
        return cls(Purpose(purpose), session, received, store)


async def read_packet(stream: TlsStream) -> tuple[PacketKind, bytes]:
    """The next packet; ProtocolError for one that cannot be."""
    kind, size = _HEAD.unpack(await stream.read_exactly(_HEAD.size))
    if kind not in list(PacketKind) or size > _MAX_PACKET_BYTES:
        raise ProtocolError(f"packet of kind {kind} with {size} bytes")
    return PacketKind(kind), await stream.read_exactly(size)


async def write_packet(stream: TlsStream, kind: PacketKind, content: bytes = b"") -> None:
    """Send one packet."""
    await stream.write(_HEAD.pack(kind, len(content)) + content)


def offset_bytes(offset: int) -> bytes:
    """The content of WELCOME and ACK."""
    return _OFFSET.pack(offset)


def offset_of(content: bytes) -> int:
    """Inverse of offset_bytes."""
    if len(content) != _OFFSET.size:
        raise ProtocolError(f"an offset of {len(content)} bytes")
    return _OFFSET.unpack(content)[0]


class Session:
    """One end: a loopback connection, the bytes from it that the other end may not have, how many came from there.

    carry() runs it over one TLS connection after another. Used in one event loop.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received = 0
        self._writer = writer
        self._unacknowledged = bytearray()
        self._acknowledged = 0  # offset of the first byte in there
        self.local_ended = False
        """The program at this end closed its connection."""
        self._end_sent = self._end_received = False
        self._news = asyncio.Event()  # for the sender: bytes, an acknowledgment to give, the end
        self._room = asyncio.Event()
        self._reading = asyncio.create_task(self._read_local(reader))

    @property
    def over(self) -> bool:
        """Both ends have said, and been told, that nothing follows."""
        return self._end_sent and self._end_received

    async def carry(self, stream: TlsStream, peer_received: int) -> None:
        """Move bytes until the session is over. OSError or TimeoutError: the connection is lost, the session is not;
        ProtocolError: neither can be used any more."""
        if not self._acknowledged <= peer_received <= self._acknowledged + len(self._unacknowledged):
            raise ProtocolError(f"the peer has {peer_received} bytes, {self._acknowledged} were acknowledged")
        self._acknowledge(peer_received)
        self._end_sent = self.over  # on a new connection it is said again
        await until_one_ends(self._send(stream), self._take(stream))

    def finish(self) -> None:
        """Take nothing more from the program at this end; over, once what it wrote has arrived."""
        self._reading.cancel()
        self.local_ended = True
        self._news.set()

    def close(self) -> None:
        """Close the loopback connection, whatever is still to be moved. Idempotent."""
        self._reading.cancel()
        self._writer.close()

    async def _read_local(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while content := await reader.read(_MAX_PACKET_BYTES):
                self._unacknowledged += content
                self._news.set()
                while len(self._unacknowledged) >= WINDOW_BYTES:
                    self._room.clear()
                    await self._room.wait()
        self.local_ended = True
        self._news.set()

    def _acknowledge(self, offset: int) -> None:
        del self._unacknowledged[: offset - self._acknowledged]
        self._acknowledged = offset
        self._room.set()

    async def _send(self, stream: TlsStream) -> None:
        sent = self._acknowledged
        told = self.received
        while not self.over:
            self._news.clear()
            if told != self.received:
                told = self.received
                await write_packet(stream, PacketKind.ACK, offset_bytes(told))
            start = sent - self._acknowledged
            content = bytes(self._unacknowledged[start : start + _MAX_PACKET_BYTES])
            if content:
                sent += len(content)
                await write_packet(stream, PacketKind.DATA, content)
            elif self.local_ended and not self._unacknowledged and not self._end_sent:
                await write_packet(stream, PacketKind.END)
                self._end_sent = True
            elif told == self.received:
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await self._news.wait()
                except TimeoutError:
                    await write_packet(stream, PacketKind.PING)

    async def _take(self, stream: TlsStream) -> None:
        most = self._acknowledged + len(self._unacknowledged)
        while not self.over:
            async with asyncio.timeout(SILENCE_LIMIT_S):
                kind, content = await read_packet(stream)
            if kind is PacketKind.DATA and not self._end_received:
                self.received += len(content)
                await self._give_local(content)
            elif kind is PacketKind.ACK:
                offset = offset_of(content)
                most = self._acknowledged + len(self._unacknowledged)
                if not self._acknowledged <= offset <= most:
                    raise ProtocolError(f"acknowledgment of byte {offset} of {most}")
                self._acknowledge(offset)
            elif kind is PacketKind.END:
                self._end_received = True
                self.local_ended = True  # a store's connection has no use with one direction
                self._writer.close()
            elif kind is not PacketKind.PING:
                raise ProtocolError(f"packet {kind.name} out of place")
            self._news.set()

    async def _give_local(self, content: bytes) -> None:
        with contextlib.suppress(OSError):  # the program left: _read_local sees it too, and END follows
            self._writer.write(content)
            await self._writer.drain()
