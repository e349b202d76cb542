"""Reports as ranks send them, of what tests say of one."""

from __future__ import annotations

import json
from typing import Any

from geocomm.observe.telemetry.report import Report, ReportLine
from geocomm.observe.telemetry.run_store import RunStore


def text(said: dict[str, Any]) -> bytes:
    """The line of a report with the fields of `Report`."""
    return json.dumps(said, separators=(",", ":")).encode()


def line(said: dict[str, Any]) -> ReportLine:
    """The same, as a collector has it."""
    return ReportLine.read(text(said))


def operation(number: int, **more: Any) -> dict[str, Any]:
    """A row of `geocomm.op_log()`."""
    own = {"number": number, "group": 1, "sequence": number, "kind": "all_reduce", "dtype": "float32", "elements": 1}
    return {**own, "failed": False, "issued_ns": 1, **more}


def keep(store: RunStore, report: Report, at: float) -> None:
    """Put a report into a store."""
    store.add([line(report.model_dump(exclude_unset=True)).report], at)
