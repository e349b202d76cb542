"""alerts.jsonl beside the run store: a line when an alert begins and one when it ends. And the webhook, where messages
of them go."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import itertools
import json
import os
import queue
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from geocomm.core.patience import pauses
from geocomm.core.run_dir import RunDir
from geocomm.observe.alerts.alert_rules import PREFIX

_MOST_BYTES = 1 << 20
"""The bytes at the end of the file that are read."""


def append(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Add lines. OSError."""
    with RunDir(folder).alerts.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def firing(folder: Path, at: float) -> list[dict[str, Any]]:
    """The lines of alerts that had begun at `at` (Unix seconds) and not ended; critical ones first. Of an alert with
    several severities, the worst."""
    last: dict[str, dict[str, Any]] = {}
    for line in _lines(RunDir(folder).alerts):
        if line["time"] <= at:
            last[json.dumps([line["alert"], line["severity"], line["labels"]])] = line
    found = [line for line in last.values() if line["status"] == "firing"]
    worst = {json.dumps([one["alert"], one["labels"]]) for one in found if one["severity"] == "critical"}
    return sorted(
        (
            one
            for one in found
            if one["severity"] == "critical" or json.dumps([one["alert"], one["labels"]]) not in worst
        ),
        key=lambda one: (one["severity"], -one["time"]),
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_BYTES))
            rows = file.read().split(b"\n")
    except OSError:
        return []
    found: list[dict[str, Any]] = []
    for row in rows:
        with contextlib.suppress(ValueError):  # cut at the begin, or half written
            found.append(json.loads(row))
    return found


_MOST_WAITING = 100
_PAUSES_S = (1.0, 5.0)
_MORE_TRIES = 2
_LIMIT_S = 10.0
_CLOSE_S = 3.0
_SLACK = "hooks.slack.com"
_NEVER = "0001-01-01T00:00:00Z"


class AlertWebhook:
    """Takes lines of alerts, and never waits: a thread of its own posts them."""

    def __init__(self, url: str | None, log: Callable[[str], None]) -> None:
        """url: None: nobody is told."""
        self._url, self._log = url, log
        self._waiting: queue.Queue[list[dict[str, Any]]] = queue.Queue(_MOST_WAITING)
        self._closing = threading.Event()
        if url:
            threading.Thread(target=self._run, args=(url,), name="geocomm-alert-webhook", daemon=True).start()

    def put(self, lines: list[dict[str, Any]]) -> None:
        """Tell of these, soon."""
        if self._url:
            try:
                self._waiting.put_nowait(lines)
            except queue.Full:
                self._log("a message of alerts was dropped: those before are not taken by the webhook")

    def close(self) -> None:
        """Give what waits some seconds."""
        end = time.monotonic() + _CLOSE_S
        while self._waiting.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.05)
        self._closing.set()

    def _run(self, url: str) -> None:
        while not self._closing.is_set():
            for message in grouped(self._waiting.get()):
                self._post(url, message)
            self._waiting.task_done()

    def _post(self, url: str, message: dict[str, Any]) -> None:
        host = urllib.parse.urlsplit(url).hostname
        body = {"text": as_text(message)} if host == _SLACK else message
        request = urllib.request.Request(
            url, json.dumps(body).encode(), {"Content-Type": "application/json", "User-Agent": "geocomm"}
        )
        for pause_s in (*itertools.islice(pauses(*_PAUSES_S), _MORE_TRIES), None):
            try:
                with urllib.request.urlopen(request, timeout=_LIMIT_S):
                    return
            except (OSError, http.client.HTTPException, ValueError) as error:  # URLError is an OSError
                # The address may hold a password.
                if pause_s is None or self._closing.wait(pause_s):
                    self._log(f"an alert was not taken by the webhook at {host}: {error}; see GEOCOMM_ALERT_WEBHOOK")
                    return


def grouped(lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Messages as Alertmanager's webhook receivers get them (version 4): one for each site and status."""

    def group(line: dict[str, Any]) -> tuple[str, str]:
        return line["labels"].get("site", ""), line["status"]

    for (site, status), found in itertools.groupby(sorted(lines, key=group), key=group):
        alerts = [_alert(line) for line in found]
        yield {
            "version": "4",
            "groupKey": f'{{}}:{{site="{site}"}}',
            "truncatedAlerts": 0,
            "status": status,
            "receiver": "geocomm",
            "groupLabels": {"site": site} if site else {},
            "commonLabels": _common([alert["labels"] for alert in alerts]),
            "commonAnnotations": _common([alert["annotations"] for alert in alerts]),
            "externalURL": "",
            "alerts": alerts,
        }


def _common(several: list[dict[str, str]]) -> dict[str, str]:
    return {name: value for name, value in several[0].items() if all(one.get(name) == value for one in several)}


def as_text(message: dict[str, Any]) -> str:
    """A message of alerts as lines for people."""
    return "\n".join(
        f"[{message['status']}] {alert['labels']['alertname']} ({alert['labels']['severity']}): "
        f"{alert['annotations']['summary']}"
        for alert in message["alerts"]
    )


def _alert(line: dict[str, Any]) -> dict[str, Any]:
    labels = {"alertname": PREFIX + line["alert"], "severity": line["severity"], **line["labels"]}
    return {
        "status": line["status"],
        "labels": labels,
        "annotations": {"summary": line["text"], "fix": line["fix"], "docs": line["docs"]},
        "startsAt": _day(line["began"]),
        "endsAt": _day(line["time"]) if line["status"] == "resolved" else _NEVER,
        "generatorURL": "",
        "fingerprint": hashlib.sha256(json.dumps(labels, sort_keys=True).encode()).hexdigest()[:16],
    }


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
