"""Reports of a site on their way to another: packets of one long zlib stream, of what changed since the last packets.

A packet is its length (4 bytes, little-endian) and reports, flushed. A report is lines, and ends with an empty one.
Both ends remember, and number from 0, the last line of each shape of a process. Where there is none, the line comes as
it is; or after a `+`, as edits of another process' line, which stays. Else come the number of the line that is
remembered, and edits of it. Nothing is lost: the lines that arrive are those that were sent.

After the number come, with a space between them, a letter for each number that changes, and the differences. The
letter's place in the alphabet says how many numbers before it stay as they are; `/` is 26 more. The difference of a
capital counts from the one before, since moments and counters move alike.
"""

from __future__ import annotations

import string
import zlib
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from geocomm.observe.telemetry.report import MAX_MEMORY_BYTES, PackedReport, packed
from geocomm.observe.telemetry.report_lines import BadReportError, Line, Shape, read_line

MOST_OF_A_PACKET = 64
"""Reports."""
_LENGTH_BYTES = 4
_MEMORY_BYTES = 32 << 20
"""Of the lines that an end remembers, and of those of a packet. Those of 500 ranks take less."""
_MOST_LINES = 1 << 15
_SMALL, _CAPITAL = string.ascii_lowercase.encode(), string.ascii_uppercase.encode()
_FARTHER = ord("/")
_STEPS = {letter: step for alphabet in (_SMALL, _CAPITAL) for step, letter in enumerate(alphabet, 1)}
_STEPS[_FARTHER] = len(_SMALL)
_Key = TypeVar("_Key")


@dataclass
class _Known:
    """A line that both ends remember: its last numbers."""

    number: int
    shape: Shape
    numbers: array[int]


class _Memory:
    """The lines that both ends of a connection remember: each adds the same ones, and forgets the same, the oldest."""

    def __init__(self) -> None:
        self._lines: dict[int, _Known] = {}
        self._next = 0
        self._bytes = 0

    def add(self, line: Line) -> _Known:
        """Remember a line."""
        known = _Known(self._next, line.shape, line.numbers[:])
        self._next += 1
        self._lines[known.number] = known
        self._bytes += line.shape.memory
        while self._bytes > _MEMORY_BYTES or len(self._lines) > _MOST_LINES:
            self._bytes -= self._lines.pop(next(iter(self._lines))).shape.memory
        return known

    def get(self, number: int | None) -> _Known | None:
        """The line of that number, unless it is forgotten or was never there."""
        return None if number is None else self._lines.get(number)

    def without_forgotten(self, numbers: dict[_Key, int]) -> dict[_Key, int]:
        """The numbers of lines that are not forgotten."""
        return {key: number for key, number in numbers.items() if number in self._lines}


class ReportPacker:
    """Packs the reports of one connection."""

    def __init__(self) -> None:
        self._stream = zlib.compressobj(9, strategy=zlib.Z_FILTERED)
        self._memory = _Memory()
        self._of_process: dict[tuple[int, str, bytes], int] = {}
        self._of_shape: dict[bytes, int] = {}

    def pack(self, waiting: deque[PackedReport]) -> bytes:
        """A packet of the first reports that wait, which it takes."""
        lines: list[bytes] = []
        memory = 0
        for _ in range(min(len(waiting), MOST_OF_A_PACKET)):
            memory += sum(line.shape.memory for line in waiting[0].lines)
            if lines and memory > MAX_MEMORY_BYTES:
                break
            lines += [*self._edited(waiting.popleft()), b""]
        text = b"".join(line + b"\n" for line in lines)
        content = self._stream.compress(text) + self._stream.flush(zlib.Z_SYNC_FLUSH)
        return len(content).to_bytes(_LENGTH_BYTES, "little") + content

    def _edited(self, report: PackedReport) -> Iterator[bytes]:
        for line in report.lines:
            shape = line.shape.text
            key = (report.head.rank, report.head.process, shape)
            if (known := self._memory.get(self._of_process.get(key))) is not None:
                yield b"%d %b" % (known.number, _edits(known.numbers, line.numbers))
                known.numbers = line.numbers
                continue
            alike = self._memory.get(self._of_shape.get(shape))
            yield line.text if alike is None else b"+%d %b" % (alike.number, _edits(alike.numbers, line.numbers))
            self._of_process[key] = self._of_shape[shape] = self._memory.add(line).number
        if len(self._of_process) + len(self._of_shape) > 4 * _MOST_LINES:
            self._of_process = self._memory.without_forgotten(self._of_process)
            self._of_shape = self._memory.without_forgotten(self._of_shape)


class ReportUnpacker:
    """Takes the bytes of one connection, in any pieces."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj()
        self._bytes = bytearray()
        self._memory = _Memory()

    def take(self, content: bytes) -> Iterator[list[PackedReport]]:
        """Of each packet that is complete now, its reports. Raises BadReportError: the connection is of no more use."""
        self._bytes += content
        while len(self._bytes) >= _LENGTH_BYTES:
            length = int.from_bytes(self._bytes[:_LENGTH_BYTES], "little")
            if length > MAX_MEMORY_BYTES:
                raise BadReportError(f"a packet of {length} bytes")
            if len(self._bytes) < _LENGTH_BYTES + length:
                return
            packet = bytes(self._bytes[_LENGTH_BYTES : _LENGTH_BYTES + length])
            del self._bytes[: _LENGTH_BYTES + length]
            try:
                text = self._stream.decompress(packet, MAX_MEMORY_BYTES)
            except zlib.error as error:
                raise BadReportError(f"no stream of reports: {error}") from None
            if self._stream.unconsumed_tail or self._stream.eof:
                raise BadReportError("a report longer than reports may be, or the end of the stream")
            yield self._reports(text)

    def _reports(self, text: bytes) -> list[PackedReport]:
        reports: list[PackedReport] = []
        lines: list[Line] = []
        memory = 0
        *texts, rest = text.split(b"\n")
        for line in texts:
            if line:
                known = self._memory.add(read_line(line)) if line.startswith(b"{") else self._edit(line)
                lines.append(Line(known.shape, known.numbers[:]))
                memory += known.shape.memory
            else:
                reports.append(packed(lines))
                lines = []
            if memory > _MEMORY_BYTES or len(reports) > MOST_OF_A_PACKET:
                raise BadReportError("a packet of more than packets may have")
        if lines or rest:
            raise BadReportError("a packet that ends within a report")
        return reports

    def _edit(self, line: bytes) -> _Known:
        number, _, edits = line.partition(b" ")
        try:
            known = self._memory.get(int(number))
            if known is None:
                raise ValueError("a line that is not known")
            if number.startswith(b"+"):
                known = self._memory.add(Line(known.shape, known.numbers))
            _apply(known.numbers, edits)
        except (ValueError, KeyError, IndexError, OverflowError, StopIteration) as error:
            raise BadReportError(f"no stream of reports: {error!r}") from None
        return known


def _edits(before: array[int], after: array[int]) -> bytes:
    """What makes the numbers `after` of those before."""
    letters = bytearray()
    values: list[bytes] = []
    skipped = moved = 0
    for old, new in zip(before, after, strict=True):
        if old == new:
            skipped += 1
            continue
        while skipped >= len(_SMALL):
            letters.append(_FARTHER)
            skipped -= len(_SMALL)
        value, chained = b"%d" % (new - old), b"%d" % (new - old - moved)
        capital = len(chained) < len(value) or chained == b"0"
        letters.append((_CAPITAL if capital else _SMALL)[skipped])
        values.append(chained if capital else value)
        skipped, moved = 0, new - old
    return b"%b %b" % (letters, b",".join(values)) if values else b""


def _apply(numbers: array[int], edits: bytes) -> None:
    """Make the new numbers. Raises KeyError, IndexError, ValueError, OverflowError or StopIteration for what are no
    edits of them."""
    letters, _, values = edits.partition(b" ")
    differences = map(int, values.split(b","))
    place, moved = -1, 0
    for letter in letters:
        place += _STEPS[letter]
        if letter != _FARTHER:
            moved = next(differences) + (moved if letter < _SMALL[0] else 0)
            numbers[place] += moved
