"""A report: what one rank says of itself, once a second.

A report is lines of JSON, compressed with zlib: the head first, then a line for `stats`, `training` and each step,
operation, round and event. The rank makes it (`metrics.report_sender`); nobody changes it on its way.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from geocomm.core.site import check_site_name
from geocomm.metrics.report_format import VERSION
from geocomm.observe.telemetry.report_lines import BadReportError, Line, Row, read_line

MAX_BYTES = 4 << 20
"""The longest report as lines."""
MAX_MEMORY_BYTES = 16 << 20
"""What the lines of a report may take in memory."""

_ROWS = {"step": "steps", "operation": "operations", "round": "rounds", "event": "events"}
"""Kinds of lines of which a report has any number."""


class Head(BaseModel):
    """The first line of a report: who says it, and when."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: int = VERSION
    site: Annotated[str, AfterValidator(check_site_name)]
    rank: Annotated[int, Field(ge=0, lt=1 << 20)]
    """In the run; in an elastic run, of the site."""
    host: Annotated[str, Field(max_length=255)] = ""
    process: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    """Random: a rank that starts again is another one."""
    sequence: Annotated[int, Field(ge=0, lt=1 << 63)]
    """Of the process' reports. A gap means that reports were dropped."""
    time: FiniteFloat
    """Unix seconds, as that machine's clock has it."""
    now_ns: int
    """Its monotonic clock, at that moment: the clock of `operations`, `rounds` and `steps`."""
    started: FiniteFloat = 0.0
    """When the process began to report, likewise; 0: not known."""
    final: bool = False
    """The process says no more."""
    certificate_ends: FiniteFloat | None = None
    """Unix seconds; None: it has no keys."""
    options: dict[str, str] | None = None
    """Of the process' first group, those that are not as by default, but for the site; None: not known."""
    egress_dollars_per_gb: FiniteFloat | None = None
    """That leaves the site; None: not known."""
    egress_dollars_per_day: FiniteFloat | None = None
    """That the egress of the whole site may cost; None: there is no limit."""
    disk_free_bytes: Annotated[int, Field(ge=0)] | None = None
    """On the disk of the run folder, for this user, a minute old at most. None: another rank tells it, or none."""
    disk_size_bytes: Annotated[int, Field(ge=0)] | None = None
    """Of that disk, likewise."""


class Report(Head):
    """What a rank said of itself at one moment."""

    stats: Row = {}
    """`geocomm.stats()`. Its counters are totals, so a report that is lost costs nothing but detail."""
    training: Row = {}
    """`geocomm.report_step`: the last step and its numbers, totals, `losses` (`metrics.loss_window`), and
    `held_out_loss` of the last evaluation."""
    steps: list[Row] = []
    """Steps that ended since the report before: `step`, `ended_ns`, `seconds` and what is known of its parts."""
    operations: list[Row] = []
    """Rows of `geocomm.op_log()` that ended since the report before, and those under way."""
    rounds: list[Row] = []
    """Rounds of local steps, likewise."""
    events: list[Row] = []
    """`geocomm.metrics.events` since the report before."""


@dataclass(frozen=True)
class PackedReport:
    """A report as it is kept and passed on."""

    head: Head
    lines: Sequence[Line]
    """All of them, that of the head too."""


def packed(lines: Sequence[Line]) -> PackedReport:
    """A report of lines, which are valid each. Raises BadReportError."""
    kinds = [line.shape.kind for line in lines]
    if kinds[:1] != ["head"] or kinds.count("head") > 1:
        raise BadReportError("no report: one head comes first")
    try:
        head = Head.model_validate_json(lines[0].text[len(b'{"head":') : -1])
    except ValidationError as error:
        raise BadReportError(f"no report: {error.errors()[0]['msg']}") from None
    if head.version != VERSION:
        raise BadReportError(f"a report of version {head.version}, and this geocomm knows {VERSION}")
    return PackedReport(head, lines)


def unpack(content: bytes) -> PackedReport:
    """A report as ranks send it. Raises BadReportError for what is none, or is too long."""
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(content, MAX_BYTES)
    except zlib.error as error:
        raise BadReportError(f"no report: {error}") from None
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise BadReportError("a report is cut off, or longer than reports may be")
    lines = [read_line(line) for line in text.split(b"\n")]
    if sum(line.shape.memory for line in lines) > MAX_MEMORY_BYTES:
        raise BadReportError("a report of more numbers than reports may have")
    return packed(lines)


def report_of(lines: Iterable[Line]) -> Report:
    """What lines of a report say, which were checked before."""
    values: dict[str, Any] = {}
    for line in lines:
        kind, row = line.shape.kind, line.row
        if kind == "head":
            values |= row
        elif kind in _ROWS:
            values.setdefault(_ROWS[kind], []).append(row)
        else:
            values[kind] = row
    return Report.model_construct(**values)
