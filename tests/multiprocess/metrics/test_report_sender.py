"""The thread that reports goes on, whatever goes wrong with one report."""

from __future__ import annotations

import json
import socket
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.addresses import private_listener
from geocomm.core.options import Options
from geocomm.metrics import report_sender
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

    path = tmp_path / "reports.sock"
    with private_listener(path, socket.SOCK_SEQPACKET) as listener:
        listener.settimeout(30)
        sender = ReportSender(str(path), 0, "a", stats, EventReader(EventLog()), Options())
        with listener.accept()[0] as receiver:
            receiver.settimeout(30)
            came = json.loads(zlib.decompress(receiver.recv(1 << 16)))
            sender.close()
    assert came["stats"]["operations"] == 3
    assert came["sequence"] == 3  # who reads it sees that two are missing
    assert sum("not foreseen" in record.message for record in caplog.records) == 1


def test_reports_go_on_after_the_collector_was_started_again(tmp_path: Path) -> None:
    path = tmp_path / "reports.sock"
    sender, came = None, list[int]()
    for _ in range(2):
        with private_listener(path, socket.SOCK_SEQPACKET) as listener:
            listener.settimeout(30)
            sender = sender or ReportSender(str(path), 0, "a", dict, EventReader(EventLog()), Options())
            with listener.accept()[0] as receiver:
                receiver.settimeout(30)
                came += [json.loads(zlib.decompress(receiver.recv(1 << 16)))["sequence"] for _ in range(2)]
    assert sender is not None
    sender.close()
    assert came == sorted(set(came))


def test_a_collector_that_takes_nothing_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(report_sender, "_AWAY_S", 0.1)
    sender = ReportSender(str(tmp_path / "reports.sock"), 0, "a", dict, EventReader(EventLog()), Options())
    for _ in range(300):
        if caplog.records:
            break
        time.sleep(0.1)
    sender.close()
    assert "has taken no reports" in caplog.records[0].message
