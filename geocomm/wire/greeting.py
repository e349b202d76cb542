"""The first words of a connection between sites, and the packets that follow: who may be asked what.

After Hello (see Greeting) both directions carry packets: a byte of kind, four of length, the content. Integers are
little-endian.
"""

from __future__ import annotations

import enum
import re
import struct
from dataclasses import dataclass
from typing import Self

from geocomm.wire.tls_stream import TlsStream

MAX_PACKET_BYTES = 16 * 1024
_HEAD = struct.Struct("<BI")
_OFFSET = struct.Struct("<Q")


class ProtocolError(ConnectionError):
    """The peer sent what it must not; its session is over."""


class SessionRefused(ConnectionError):
    """The hub will not have this session; the message is its reason."""


class NotYetHere(SessionRefused):
    """What is asked for may be about to come: who asks tries again, and says so where it takes long. The hub does
    not."""


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
    WEIGHTS = 7  # one that follows a stream of weights, to a relay


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
    if kind not in list(PacketKind) or size > MAX_PACKET_BYTES:
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
