"""The thread that reports goes on, whatever goes wrong with one report."""

from __future__ import annotations

import socket
import zlib
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.options import Options
from geocomm.metrics.events import EventLog, EventReader
from geocomm.metrics.report_sender import ReportSender


def test_a_report_that_cannot_be_made_costs_itself_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reads = 0

    def stats() -> dict[str, Any]:
        nonlocal reads
        reads += 1
        if reads <= 2:
            raise KeyError("not foreseen")
        return {"operations": reads}

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "reports.sock"))
        receiver.settimeout(30)
        sender = ReportSender(str(tmp_path / "reports.sock"), 0, "a", stats, EventReader(EventLog()), Options())
        came = zlib.decompress(receiver.recv(1 << 16)).decode()
        sender.close()
    assert '"operations":3' in came
    assert '"reports_dropped":2' in came
    assert sum("not foreseen" in record.message for record in caplog.records) == 1
