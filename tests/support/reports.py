"""Reports as ranks send them, of what tests say of one."""

from __future__ import annotations

import json
import zlib
from typing import Any

from geocomm.observe.telemetry.report import Head, PackedReport, Report, unpack
from geocomm.observe.telemetry.run_store import RunStore


def text(said: dict[str, Any]) -> bytes:
    """The lines of a report with the fields of `Report`."""
    rows = [("head", {name: value for name, value in said.items() if name in Head.model_fields})]
    rows += [(kind, said[kind]) for kind in ("stats", "training") if said.get(kind)]
    rows += [(kind, row) for kind in ("step", "operation", "round", "event") for row in said.get(f"{kind}s", [])]
    return b"\n".join(json.dumps({kind: row}, separators=(",", ":")).encode() for kind, row in rows)


def packed(said: dict[str, Any]) -> PackedReport:
    """The same, as a collector has it."""
    return unpack(zlib.compress(text(said)))


def keep(store: RunStore, report: Report, at: float) -> None:
    """Put a report into a store."""
    store.add([packed(report.model_dump())], at)
