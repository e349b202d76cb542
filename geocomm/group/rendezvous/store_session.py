"""A connection of torch's store, carried over TLS connections that may drop: what both ends of it do.

torch's store client never reconnects: when its connection breaks, the store is lost to that process. So the loopback
connections at both ends stay open while the TLS connection between them is replaced, and what the other end has not
acknowledged is sent again.
"""

from __future__ import annotations

import asyncio
import contextlib

from geocomm.core.patience import until_one_ends
from geocomm.wire.greeting import (
    MAX_PACKET_BYTES,
    PacketKind,
    ProtocolError,
    offset_bytes,
    offset_of,
    read_packet,
    write_packet,
)
from geocomm.wire.tls_stream import TlsStream

WINDOW_BYTES = 1 << 20
"""Each end keeps at most so much (and one read) that the other has not acknowledged."""
HEARTBEAT_S = 5.0
SILENCE_LIMIT_S = 15.0
"""A connection that brought nothing for this time is given up."""
RESUME_LIMIT_S = 300.0
"""How long a session waits for another connection."""


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
            while content := await reader.read(MAX_PACKET_BYTES):
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
            content = bytes(self._unacknowledged[start : start + MAX_PACKET_BYTES])
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
