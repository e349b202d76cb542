"""Alerts of a collector as a process: it says which of two sites is silent, while the other reports on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from geocomm.group.rendezvous.to_collector import CollectorConfig, rank_socket
from geocomm.observe.alerts.alert_log import FILE_NAME
from support.reports import text

pytestmark = pytest.mark.timeout(120)


def report(site: str, sequence: int) -> bytes:
    own: dict[str, Any] = {"site": site, "rank": "ab".index(site), "process": f"{ord(site):016x}"}
    body = {**own, "sequence": sequence, "time": time.time(), "now_ns": time.monotonic_ns()}
    return zlib.compress(text({**body, "stats": {"local_steps": []}}))


def test_silent_site_is_told_in_the_file_the_log_and_to_the_command(tmp_path: Path) -> None:
    copy = f"{sys.executable} -c \"import sys; open('{tmp_path / 'got'}', 'a').write(sys.stdin.read())\""
    folder = tmp_path / "telemetry"
    folder.mkdir()
    collector = subprocess.Popen(
        CollectorConfig(folder).command(os.getpid()),
        env={**os.environ, "GEOCOMM_ALERT_COMMAND": copy},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender:
            while not rank_socket(folder).exists():
                assert collector.poll() is None
                time.sleep(0.05)
            sender.connect(str(rank_socket(folder)))
            for sequence in range(200):
                sender.send(report("a", sequence))
                if sequence < 8:
                    sender.send(report("b", sequence))
                if (tmp_path / "got").exists():
                    break
                time.sleep(1)
    finally:
        collector.kill()
    _, said = collector.communicate(timeout=20)
    (line,) = [json.loads(one) for one in (folder / FILE_NAME).read_text().splitlines()]
    assert (line["status"], line["alert"], line["labels"]) == ("firing", "SiteSilent", {"site": "b"})
    assert json.loads((tmp_path / "got").read_text())["commonLabels"]["alertname"] == "GeocommSiteSilent"
    assert "alert SiteSilent (warning) firing: a rank of b has not reported" in said
