"""Alerts of a collector as a process: it says which of two sites is silent, while the other reports on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.run_dir import RunDir
from geocomm.group.rendezvous.to_collector import CollectorConfig
from support.reports import text
from support.webhook import Webhook, webhook

pytestmark = pytest.mark.timeout(120)


def report(site: str, sequence: int) -> bytes:
    own: dict[str, Any] = {"site": site, "rank": "ab".index(site), "process": f"{ord(site):016x}"}
    body = {**own, "sequence": sequence, "time": time.time(), "now_ns": time.monotonic_ns()}
    return zlib.compress(text({**body, "stats": {"local_steps": []}}))


def test_silent_site_is_told_in_the_file_the_log_and_to_the_webhook(tmp_path: Path) -> None:
    folder = tmp_path / "telemetry"
    folder.mkdir()
    with webhook() as receiver:
        said = _run(folder, receiver)
    (line,) = [json.loads(one) for one in RunDir(folder).alerts.read_text().splitlines()]
    assert (line["status"], line["alert"], line["labels"]) == ("firing", "SiteSilent", {"site": "b"})
    assert receiver.got[0]["commonLabels"]["alertname"] == "GeocommSiteSilent"
    assert "alert SiteSilent (warning) firing: a rank of b has not reported" in said


def _run(folder: Path, receiver: Webhook) -> str:
    """What a collector logs until the receiver is told."""
    collector = subprocess.Popen(
        CollectorConfig(folder).command(os.getpid()),
        env={**os.environ, "GEOCOMM_ALERT_WEBHOOK": receiver.url},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender:
            while sender.connect_ex(str(RunDir(folder).rank_socket)) != 0:
                assert collector.poll() is None
                time.sleep(0.05)
            for sequence in range(200):
                sender.send(report("a", sequence))
                if sequence < 8:
                    sender.send(report("b", sequence))
                if receiver.got:
                    break
                time.sleep(1)
    finally:
        collector.kill()
    return collector.communicate(timeout=60)[1]
