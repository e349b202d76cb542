"""Alerts in the collector: evaluates the rules as Prometheus would, and tells of what begins and ends."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geocomm.core.message_log import CalmLog
from geocomm.core.run_dir import RunDir
from geocomm.observe.alerts import alert_log
from geocomm.observe.alerts.alert_log import AlertWebhook
from geocomm.observe.alerts.alert_rules import (
    INHIBITIONS,
    KEEP_FIRING_S,
    RULES,
    AlertRule,
    annotations_of,
    labels_of,
)
from geocomm.observe.alerts.conditions import LookBack, Past
from geocomm.observe.telemetry.last_reports import SILENT_SECONDS, Life
from geocomm.observe.telemetry.numbers import Labels
from geocomm.observe.telemetry.overview import Overview, overview
from geocomm.observe.telemetry.run_numbers import Rows, rows_now
from geocomm.observe.telemetry.run_store import NoStoreError, RunStore
from geocomm.observe.telemetry.store_folder import StoreFolder

INTERVAL_S = 5.0
_MOST_SHARE = 0.1
"""The share of the time that evaluating may take."""
QUIET_S = 300.0
"""An alert is sent again no sooner than this after it was sent."""
_COMPLAINT_S = 600.0
_MOST_UNWRITTEN = 1000


@dataclass
class Alert:
    """A rule that holds for some labels."""

    rule: AlertRule
    labels: Labels
    began: float
    firing: bool = False
    """It has held for as long as the rule asks."""
    held_until: float | None = None
    """When it was found not to hold any more; None: it holds."""

    @property
    def key(self) -> tuple[str, str, Labels]:
        """What makes it the same one later."""
        return self.rule.name, self.rule.severity.value, self.labels

    def line(self, status: str, at: float) -> dict[str, Any]:
        """The alert for a file."""
        said = annotations_of(self.rule, dict(self.labels))
        return {
            "time": at,
            "status": status,
            "alert": self.rule.name,
            "severity": self.rule.severity.value,
            "labels": dict(self.labels),
            "began": self.began,
            "text": said["summary"],
            "fix": said["fix"],
            "docs": said["docs"],
        }


class Evaluation:
    """Which alerts fire, from one moment to the next."""

    def __init__(self) -> None:
        looks_back: dict[LookBack, float] = {}
        for rule in RULES:
            rule.promql(looks_back)
        self._past = Past(looks_back)
        self._alerts: dict[tuple[str, str, Labels], Alert] = {}

    def step(self, at: float, rows: Rows) -> list[Alert]:
        """The alerts that fire at `at`."""
        self._past.add(at, rows)
        for rule in RULES:
            if isinstance(rule.when, str):
                continue
            holds = [
                labels
                for labels, row in rows.get(rule.of, {}).items()
                if rule.means(labels) and rule.when(self._past.numbers(rule.of, labels, row))
            ]
            for labels in holds:
                alert = self._alerts.setdefault((rule.name, rule.severity.value, labels), Alert(rule, labels, began=at))
                alert.held_until = None
                alert.firing = alert.firing or at - alert.began >= rule.for_seconds
            for alert in [one for one in self._alerts.values() if one.rule is rule and one.labels not in holds]:
                if alert.held_until is None:
                    alert.held_until = at
                if not alert.firing or at - alert.held_until >= KEEP_FIRING_S:
                    del self._alerts[alert.key]
        return [alert for alert in self._alerts.values() if alert.firing]


def without_inhibited(firing: Sequence[Alert]) -> list[Alert]:
    """Less what Alertmanager would inhibit."""
    labels = [labels_of(alert.rule, dict(alert.labels)) for alert in firing]
    inhibited = {i for one in INHIBITIONS for i in one.inhibited(labels)}
    return [alert for i, alert in enumerate(firing) if i not in inhibited]


class Messages:
    """The messages about alerts that fire: that they begin and that they end, and nothing twice in five minutes."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str, Labels], Alert] = {}
        self._last: dict[tuple[str, str, Labels], float] = {}

    def news(self, at: float, firing: list[Alert]) -> list[tuple[str, Alert]]:
        """Pairs of a status, "firing" or "resolved", and an alert."""
        told = {alert.key: alert for alert in without_inhibited(firing)}
        begun = [
            alert
            for key, alert in told.items()
            if key not in self._told and at - self._last.get(key, -QUIET_S) >= QUIET_S
        ]
        goes_on = {alert.key for alert in firing}
        ended = [alert for key, alert in self._told.items() if key not in goes_on]
        for alert in begun:
            self._told[alert.key] = alert
            self._last[alert.key] = at
        for alert in ended:
            del self._told[alert.key]
        return [*(("firing", alert) for alert in begun), *(("resolved", alert) for alert in ended)]


class _Watch:
    """What is known of alerts while they apply."""

    def __init__(self) -> None:
        self._since = time.time()  # older ranks are of a run before, or of when this site led before
        self._evaluation, self._messages = Evaluation(), Messages()

    def look(self, folder: Path) -> tuple[list[dict[str, Any]], float]:
        """The lines of alerts that begin and end now, and seconds until something may be silent. Raises what the disk
        says: NoStoreError, sqlite3.Error, OSError."""
        now = time.time()
        with contextlib.closing(RunStore(folder)) as store:
            seen = overview(store, now, self._since)
        news = self._messages.news(now, self._evaluation.step(now, rows_now(seen, StoreFolder.look(folder))))
        return [alert.line(status, now) for status, alert in news], _until_silent(seen)


class Alerting:
    """A thread that evaluates the store of a folder every five seconds, until close().

    Nothing ends it before. What cannot be read now is read the next time, and a line that the file does not take is
    written later."""

    def __init__(
        self,
        folder: Path,
        webhook: AlertWebhook,
        log: Callable[[str], None],
        applies: Callable[[], bool] = lambda: True,
    ) -> None:
        """applies: whether all sites' reports come here, now."""
        self._folder, self._webhook, self._log, self._applies = folder, webhook, log, applies
        self._complain = CalmLog(log, _COMPLAINT_S, 20)
        self._failing = False
        self._unwritten: deque[dict[str, Any]] = deque(maxlen=_MOST_UNWRITTEN)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="geocomm-alerts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """What fires then is left as it is in the file: it was so when the run ended."""
        self._closing.set()
        self._thread.join(INTERVAL_S)
        self._webhook.close()

    def _run(self) -> None:
        watch, wait_s, ended = None, 0.0, False
        while not self._closing.wait(wait_s):
            began, wait_s = time.monotonic(), INTERVAL_S
            try:
                if not ended:
                    self._end_those_of_before()
                    ended = True
                self._write()
                watch = (watch or _Watch()) if self._applies() else None
                if watch is not None:
                    lines, silent_s = watch.look(self._folder)
                    self._tell(lines)
                    wait_s = max(min(INTERVAL_S, silent_s), (time.monotonic() - began) / _MOST_SHARE)
                self._works()
            except (NoStoreError, sqlite3.Error, OSError) as error:
                self._fails(str(error))
            except Exception:
                self._fails(f"by an error of this program: {traceback.format_exc()}")

    def _end_those_of_before(self) -> None:
        now = time.time()
        self._unwritten += [{**one, "status": "resolved", "time": now} for one in alert_log.firing(self._folder, now)]

    def _fails(self, why: str) -> None:
        self._failing = True
        self._complain(f"no alert can begin or end now: {why}; it is tried again every {INTERVAL_S:g} s")

    def _works(self) -> None:
        if self._failing:
            self._failing = False
            self._log("alerts are evaluated again")

    def _tell(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            ending = f"; {line['fix']}" if line["status"] == "firing" else ""
            self._log(f"alert {line['alert']} ({line['severity']}) {line['status']}: {line['text']}{ending}")
        if lines:
            self._webhook.put(lines)
        self._unwritten += lines
        self._write()

    def _write(self) -> None:
        """Add to the file what it lacks."""
        if self._unwritten:
            try:
                alert_log.append(self._folder, list(self._unwritten))
                self._unwritten.clear()
            except OSError as error:
                path = RunDir(self._folder).alerts
                self._complain(f"alerts are not in {path} yet: {error}; they are written once that is possible")


def _until_silent(seen: Overview) -> float:
    """Seconds until a rank that goes on reporting nothing is silent."""
    ages = [rank.report_age_seconds for site in seen.sites for rank in site.ranks if rank.life is Life.REPORTING]
    return max(0.1, SILENT_SECONDS + 0.1 - max(ages)) if ages else INTERVAL_S
