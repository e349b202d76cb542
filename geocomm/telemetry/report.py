"""A report: what one rank says of itself, once a second.

A report is JSON, compressed with zlib. The rank makes it (`metrics.report_sender`); nobody changes it on its way.
"""

from __future__ import annotations

import zlib
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from geocomm.core.site import check_site_name

VERSION = 1
MAX_PACKED_BYTES = 128 << 10
"""The longest report as it travels: a datagram of Linux's default size takes it."""
MAX_BYTES = 4 << 20
"""The longest report as JSON."""

Row = dict[str, Any]


class BadReportError(ValueError):
    """What should be a report is none."""


class Report(BaseModel):
    """What a rank said of itself at one moment."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: int = VERSION
    site: Annotated[str, AfterValidator(check_site_name)]
    rank: Annotated[int, Field(ge=0, lt=1 << 20)]
    """In the run; in an elastic run, of the site."""
    host: Annotated[str, Field(max_length=255)] = ""
    process: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    """Random: a rank that starts again is another one."""
    sequence: Annotated[int, Field(ge=0)]
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
    stats: Row = {}
    """`geocomm.stats()`. Its counters are totals, so a report that is lost costs nothing but detail."""
    training: Row = {}
    """`geocomm.report_step`: the last step and its numbers, totals, and `losses` (`metrics.loss_window`)."""
    steps: list[Row] = []
    """Steps that ended since the report before: `step`, `ended_ns`, `seconds` and what is known of its parts."""
    operations: list[Row] = []
    """Rows of `geocomm.op_log()` that ended since the report before, and those under way."""
    rounds: list[Row] = []
    """Rounds of local steps, likewise."""
    events: list[Row] = []
    """`geocomm.metrics.events` since the report before."""


def unpack(packed: bytes) -> tuple[Report, bytes]:
    """A report as ranks send it, and its JSON. Raises BadReportError for what is none, or is too long."""
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(packed, MAX_BYTES)
    except zlib.error as error:
        raise BadReportError(f"no report: {error}") from None
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise BadReportError("a report is cut off, or longer than reports may be")
    return parse(text), text


def parse(text: bytes) -> Report:
    """A report as JSON. Raises BadReportError."""
    try:
        report = Report.model_validate_json(text)
    except ValidationError as error:
        raise BadReportError(f"no report: {error.errors()[0]['msg']}") from None
    if report.version != VERSION:
        raise BadReportError(f"a report of version {report.version}, and this geocomm knows {VERSION}")
    return report
