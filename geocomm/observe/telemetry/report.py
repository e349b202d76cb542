"""A report: what one rank says of itself, once a second.

A report is one line of JSON. The rank makes it (`metrics.report_sender`), and sends it compressed with zlib; nobody
changes it on its way. A connection to another site carries lines in one long zlib stream, flushed after the last one.

`total`, `mean` and `median` bring together values of reports of which some are not known: None, NaN or infinite.
"""

from __future__ import annotations

import math
import statistics
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from geocomm.core.message_log import printable
from geocomm.core.site import check_site_name
from geocomm.metrics.report_sender import VERSION
from geocomm.observe.telemetry.report_rows import EVENT, OPERATION, ROUND, STATS, STEP, TRAINING, Row, Shape, rows

MAX_BYTES = 4 << 20
"""The longest report as a line."""
MAX_INFLATED_BYTES = 16 << 20
"""The most that one piece of a connection's stream may inflate to."""
MOST_TOGETHER = 64
"""Reports that are compressed, checked or kept together."""
_MOST_OF_A_PLACE = 100


class BadReportError(ValueError):
    """What should be a report is none."""


def _known_version(version: int) -> int:
    if version != VERSION:
        raise ValueError(f"it is of version {version}, and this geocomm knows {VERSION}")
    return version


UnixSeconds = Annotated[float, Field(ge=0, le=1e11)]
Dollars = Annotated[float, Field(ge=0, le=1e12)]
Word = Annotated[str, Field(max_length=4096), AfterValidator(printable)]


class Report(BaseModel):
    """What a rank said of itself at one moment."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, ser_json_inf_nan="constants")

    version: Annotated[int, AfterValidator(_known_version)] = VERSION
    site: Annotated[str, AfterValidator(check_site_name)]
    rank: Annotated[int, Field(ge=0, lt=1 << 20)]
    """In the run; in an elastic run, of the site."""
    host: Annotated[str, Field(max_length=255), AfterValidator(printable)] = ""
    process: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    """Random: a rank that starts again is another one."""
    sequence: Annotated[int, Field(ge=0, lt=1 << 63)]
    """The number of the report among those of the process, from 1. A gap means that reports were lost on their way."""
    time: UnixSeconds
    """As that machine's clock has it. It says when other things were on that machine; not how old the report is."""
    now_ns: Annotated[int, Field(ge=0, lt=1 << 63)]
    """Its monotonic clock, at that moment: the clock of `operations`, `rounds` and `steps`."""
    final: bool = False
    """The process says no more."""
    certificate_ends: UnixSeconds | None = None
    """None: it has no keys."""
    options: Annotated[dict[Word, Word], Field(max_length=1000)] | None = None
    """The options of the process' first group that are not as by default, but for the site; None: not known."""
    egress_dollars_per_gb: Dollars | None = None
    """That leaves the site; None: not known."""
    egress_dollars_per_day: Dollars | None = None
    """That the egress of the whole site may cost; None: there is no limit."""
    disk_free_bytes: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    """On the disk of the run folder, for this user, a minute old at most. None: another rank tells it, or none."""
    disk_size_bytes: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    """The size of that disk, likewise."""
    stats: Annotated[Row, Shape(STATS), Field(validate_default=True)] = {}
    """`geocomm.stats()`. Its counters are totals, so a report that is lost costs nothing but detail."""
    training: Annotated[Row, Shape(TRAINING)] = {}
    """`geocomm.report_step`: the last step and its numbers, totals, `losses` (`metrics.training.LossWindow`), and
    `held_out_loss` of the last evaluation."""
    steps: Annotated[list[Row], Shape(rows(STEP))] = []
    """Steps that ended since the report before: `step`, `ended_ns`, `seconds` and what is known of its parts."""
    operations: Annotated[list[Row], Shape(rows(OPERATION))] = []
    """Rows of `geocomm.op_log()` that ended since the report before, and those under way."""
    rounds: Annotated[list[Row], Shape(rows(ROUND))] = []
    """Rounds of local steps, likewise."""
    events: Annotated[list[Row], Shape(rows(EVENT))] = []
    """`geocomm.metrics.events` since the report before."""


@dataclass(frozen=True)
class ReportLine:
    """A report, and the line that it came as."""

    text: bytes
    report: Report

    @classmethod
    def read(cls, text: bytes) -> Self:
        """Raises BadReportError for what is no report, or is too long."""
        if len(text) > MAX_BYTES or b"\n" in text:
            raise BadReportError("a report is longer than reports may be, or of several lines")
        try:
            return cls(text, Report.model_validate(from_json(text)))  # less work than model_validate_json
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))[:_MOST_OF_A_PLACE]
            raise BadReportError(f"no report: {printable(place)}: {printable(first['msg'])}") from None
        except ValueError as error:
            raise BadReportError(f"no report: {error}") from None

    @classmethod
    def unpack(cls, content: bytes) -> Self:
        """Read a report in the form that ranks send. Raises BadReportError."""
        unpacker = zlib.decompressobj()
        try:
            text = unpacker.decompress(content, MAX_BYTES + 1)
        except zlib.error as error:
            raise BadReportError(f"no report: {error}") from None
        if not unpacker.eof:
            raise BadReportError("a report is cut off, or longer than reports may be")
        return cls.read(text)


class ReportPacker:
    """Makes the stream of one connection."""

    def __init__(self) -> None:
        self._stream = zlib.compressobj()

    def pack(self, lines: Iterable[bytes]) -> bytes:
        """The next piece: these reports."""
        content = b"".join(line + b"\n" for line in lines)
        return self._stream.compress(content) + self._stream.flush(zlib.Z_SYNC_FLUSH)


class ReportUnpacker:
    """Reads the stream of one connection, which comes in any pieces."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj()
        self._begun = bytearray()

    def take(self, content: bytes) -> Iterator[list[ReportLine]]:
        """Reports that are complete now, some at a time. Raises BadReportError: the connection is of no more use."""
        try:
            text = self._stream.decompress(content, MAX_INFLATED_BYTES)
        except zlib.error as error:
            raise BadReportError(f"no stream of reports: {error}") from None
        if self._stream.unconsumed_tail or self._stream.eof:
            raise BadReportError("a stream of reports that ends, or inflates too far")
        self._begun += text
        found: list[ReportLine] = []
        begin = 0
        while (end := self._begun.find(b"\n", begin)) >= 0:
            found.append(ReportLine.read(bytes(self._begun[begin:end])))
            begin = end + 1
            if len(found) == MOST_TOGETHER:
                yield found
                found = []
        del self._begun[:begin]
        if len(self._begun) > MAX_BYTES:
            raise BadReportError("a report is longer than reports may be")
        if found:
            yield found


def known(values: Iterable[float | None]) -> list[float]:
    """The values that are known."""
    return [value for value in values if value is not None and math.isfinite(value)]


def total(values: Iterable[float | None]) -> float | None:
    """The sum of those that are known; None: there is none."""
    found = known(values)
    return sum(found) if found else None


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known; None: there is none."""
    found = known(values)
    return statistics.fmean(found) if found else None


def median(values: Iterable[float | None]) -> float | None:
    """The median of the values that are known; None: there is none."""
    found = known(values)
    return statistics.median(found) if found else None


def share(part: float, whole: float) -> float | None:
    """How much of `whole` the part is, at most 1. None: there is no whole."""
    return min(1.0, part / whole) if whole > 0 else None


def words(values: Iterable[Any]) -> str:
    """Each one once, but for empty ones."""
    return ", ".join(sorted({str(value) for value in values if value}))
