"""The files of `geocomm monitoring` with a real Prometheus and Alertmanager: a site dies, and a receiver is told."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from geocomm.core.run_dir import RunDir
from support.hub_jobs import Job, job_in, start_node
from support.hub_support import HUB_HOST, make_keys
from support.local_jobs import environment, free_port, free_ports
from support.warm_executable import warm_executable
from support.webhook import webhook

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

# Debian's names of the programs.
PROMETHEUS, ALERTMANAGER, AMTOOL = "prometheus", "prometheus-alertmanager", "amtool"

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(shutil.which, (PROMETHEUS, ALERTMANAGER, AMTOOL))),
        reason="needs prometheus and prometheus-alertmanager (Debian)",
    ),
]


def ask(url: str) -> Any:
    """The JSON there; None: nobody answers yet."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)
    except (urllib.error.URLError, ConnectionError):
        return None


def until(condition: Callable[[], bool], what: str, job: Job, limit_s: float = 120) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"{what}\n{job.output()}"
        time.sleep(0.1)


def write_files(folder: Path, dashboard: int, alertmanager: int, receiver: str) -> None:
    """`geocomm monitoring`, and what a user changes in its files: where Alertmanager is, and where messages go."""
    command = [warm_executable(), "-m", "geocomm", "monitoring", str(folder), "--target", f"localhost:{dashboard}"]
    subprocess.run(command, check=True, env=environment(), stdout=subprocess.DEVNULL)
    file = folder / "prometheus.yml"
    file.write_text(file.read_text().replace("localhost:9093", f"localhost:{alertmanager}"))
    file = folder / "alertmanager.yml"
    config = yaml.safe_load(file.read_text())
    config["receivers"][0]["webhook_configs"] = [{"url": receiver}]
    file.write_text(yaml.safe_dump(config))


def firing(prometheus: int) -> set[tuple[str, str, str | None]]:
    """Names, severities and sites of the alerts that fire there."""
    alerts = (ask(f"http://127.0.0.1:{prometheus}/api/v1/alerts") or {"data": {"alerts": []}})["data"]["alerts"]
    labels = [alert["labels"] for alert in alerts if alert["state"] == "firing"]
    return {(one["alertname"], one["severity"], one.get("site")) for one in labels}


def test_a_site_that_dies_is_told_through_prometheus_and_alertmanager(tmp_path: Path) -> None:
    keys, telemetry, files = tmp_path / "keys", tmp_path / "telemetry", tmp_path / "monitoring"
    make_keys(keys)
    hub = free_port(HUB_HOST)
    dashboard, prometheus, alertmanager = free_ports(3)
    with job_in(tmp_path / "job") as job, webhook() as receiver:
        start_node(job, keys, hub, 0, "stay", telemetry=telemetry)
        job.wait_for_listener(HUB_HOST, hub)  # of two nodes on one machine, the first is the hub
        start_node(job, keys, hub, 1, "stay", telemetry=telemetry)
        for rank in range(2):
            job.fact(f"rank{rank}")
        until((telemetry / "telemetry.sqlite").exists, "the run has telemetry", job)
        write_files(files, dashboard, alertmanager, receiver.url)
        job.start("-m", "geocomm", "dashboard", str(telemetry), "--port", str(dashboard))
        job.start_program(
            *(ALERTMANAGER, "--config.file", str(files / "alertmanager.yml"), "--storage.path", str(tmp_path / "sent")),
            *("--web.listen-address", f"127.0.0.1:{alertmanager}", "--cluster.listen-address", ""),
        )
        job.start_program(
            *(PROMETHEUS, "--config.file", str(files / "prometheus.yml"), "--storage.tsdb.path", str(tmp_path / "db")),
            *("--web.listen-address", f"127.0.0.1:{prometheus}"),
        )
        watchdog = ("GeocommWatchdog", "none", None)
        until(lambda: firing(prometheus) == {watchdog}, "the watchdog alone fires", job)
        query = f"http://127.0.0.1:{prometheus}/api/v1/query?query=geocomm_site_ranks_reporting"
        until(lambda: len((ask(query) or {"data": {"result": []}})["data"]["result"]) == 2, "two sites are there", job)
        assert not receiver.got

        job.kill(1)
        until(lambda: bool(receiver.got), "the receiver is told", job)
        message = receiver.got[0]
        assert (message["status"], message["receiver"], message["groupLabels"]) == ("firing", "team", {"site": "b"})
        assert message["commonLabels"]["alertname"] == "GeocommSiteSilent"
        assert message["commonAnnotations"]["summary"] == "a rank of b has not reported for 15 s"
        assert firing(prometheus) == {watchdog, ("GeocommSiteSilent", "warning", "b")}
        shown = subprocess.run(
            [AMTOOL, "--alertmanager.url", f"http://127.0.0.1:{alertmanager}", "alert", "query", "-o", "json"],
            check=True,
            capture_output=True,
        )
        # Perhaps not the watchdog: what Prometheus drops before it knows Alertmanager comes again in a minute.
        assert "GeocommSiteSilent" in {alert["labels"]["alertname"] for alert in json.loads(shown.stdout)}
        # The hub's own evaluation found the same.
        own = [json.loads(line) for line in RunDir(telemetry).alerts.read_text().splitlines()]
        assert [(one["alert"], one["severity"], one["labels"]) for one in own] == [
            ("SiteSilent", "warning", {"site": "b"})
        ]
