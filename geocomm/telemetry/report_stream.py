"""Reports of a site on their way to another: packets of one long zlib stream.

A report resembles the one before it, so that a stream of them is a third of the same reports compressed one by one.
A packet is its length (4 bytes, little-endian) and a report, flushed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from geocomm.telemetry.report import MAX_BYTES, BadReportError

_LENGTH_BYTES = 4


class ReportPacker:
    """Packs the reports of one connection."""

    def __init__(self) -> None:
        self._stream = zlib.compressobj(6)

    def pack(self, text: bytes) -> bytes:
        """The packet of a report as JSON."""
        content = self._stream.compress(text) + self._stream.flush(zlib.Z_SYNC_FLUSH)
        return len(content).to_bytes(_LENGTH_BYTES, "little") + content


class ReportUnpacker:
    """Takes the bytes of one connection, in any pieces."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj()
        self._bytes = bytearray()

    def take(self, content: bytes) -> Iterator[bytes]:
        """Reports as JSON that are complete now. Raises BadReportError: the connection is of no more use."""
        self._bytes += content
        while len(self._bytes) >= _LENGTH_BYTES:
            length = int.from_bytes(self._bytes[:_LENGTH_BYTES], "little")
            if length > MAX_BYTES:
                raise BadReportError(f"a packet of {length} bytes")
            if len(self._bytes) < _LENGTH_BYTES + length:
                return
            packed = bytes(self._bytes[_LENGTH_BYTES : _LENGTH_BYTES + length])
            del self._bytes[: _LENGTH_BYTES + length]
            try:
                text = self._stream.decompress(packed, MAX_BYTES)
            except zlib.error as error:
                raise BadReportError(f"no stream of reports: {error}") from None
            if self._stream.unconsumed_tail or self._stream.eof:
                raise BadReportError("a report longer than reports may be, or the end of the stream")
            yield text
