"""What is told of alerts: when, to whom, and what happens where nobody takes it."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.run_dir import RunDir
from geocomm.observe.alerts import alert_log, alerting
from geocomm.observe.alerts.alert_log import AlertWebhook, as_text
from geocomm.observe.alerts.alert_rules import KEEP_FIRING_S
from geocomm.observe.alerts.alerting import INTERVAL_S, QUIET_S, Evaluation, Messages
from geocomm.observe.telemetry.numbers import Labels
from geocomm.observe.telemetry.run_store import RunStore
from support import reports
from support.metric_samples import Samples, rows_of
from support.webhook import Webhook, webhook
from support.whole_report import whole_report

SITE = (("site", "b"),)
LINK = (("peer_site", "b"), ("site", "a"))
BACK = (("peer_site", "a"), ("site", "b"))


def told(run: Callable[[float], Samples], seconds: float) -> list[tuple[float, str, str]]:
    """When what was told of the samples of each moment."""
    evaluation, messages, found, at = Evaluation(), Messages(), list[tuple[float, str, str]](), 0.0
    while at <= seconds:
        found += [
            (at, status, alert.rule.name) for status, alert in messages.news(at, evaluation.step(at, rows_of(run(at))))
        ]
        at += INTERVAL_S
    return found


def silent_in(*spans: tuple[float, float]) -> Callable[[float], Samples]:
    return lambda at: {"geocomm_site_report_age_seconds": {SITE: 20.0 if any(a <= at < b for a, b in spans) else 0.0}}


def test_alert_ends_a_minute_after_its_cause_and_is_told_again_no_sooner_than_in_five() -> None:
    found = told(silent_in((10, 20), (40, 50), (150, 500)), 700)
    assert found == [
        (10, "firing", "SiteSilent"),
        (50 + KEEP_FIRING_S, "resolved", "SiteSilent"),  # the second time came within the minute
        (10 + QUIET_S, "firing", "SiteSilent"),
        (500 + KEEP_FIRING_S, "resolved", "SiteSilent"),
    ]


@pytest.mark.parametrize("link", [LINK, BACK], ids=["to it", "from it"])
def test_links_of_a_silent_site_are_no_news_while_it_is_silent(link: Labels) -> None:
    def run(at: float) -> Samples:
        outages = {link: 0.0 if at < 10 else 9.0, (("peer_site", "c"), ("site", "a")): 0.0 if at < 100 else 9.0}
        return {**silent_in((5, 200))(at), "geocomm_site_link_worst_pair_outages_total": outages}

    assert [one for one in told(run, 300) if one[1] == "firing"] == [
        (5, "firing", "SiteSilent"),
        (100, "firing", "LinkOutages"),  # of the link to c
        (200 + KEEP_FIRING_S, "firing", "LinkOutages"),  # of that to b
    ]


@pytest.mark.parametrize(
    ("store", "tells"),
    [
        (SITE, [(60, "firing", "RunDiskFull"), (600 + KEEP_FIRING_S, "resolved", "RunDiskFull")]),
        (
            (),
            [
                (60, "firing", "RunDiskFull"),
                (125, "firing", "DiskFull"),
                (545 + KEEP_FIRING_S, "resolved", "DiskFull"),
                (600 + KEEP_FIRING_S, "resolved", "RunDiskFull"),
            ],
        ),
    ],
    ids=["in the run folder", "elsewhere"],
)
def test_full_disk_that_a_run_folder_and_the_store_share_is_told_once(store: Labels, tells: Any) -> None:
    def disk(name: str, labels: Labels, free: float) -> Samples:
        return {f"geocomm_{name}_free_bytes": {labels: free}, f"geocomm_{name}_size_bytes": {labels: 1e12}}

    def run(at: float) -> Samples:
        seen_by_ranks = at // 60 * 60  # they look once a minute
        free, seen = (1e9 if 5 <= moment < 545 else 5e11 for moment in (at, seen_by_ranks))
        return {**disk("disk", store, free), **disk("site_disk", SITE, seen)}

    assert told(run, 900) == tells


def test_warning_of_what_is_critical_is_no_news() -> None:
    def run(at: float) -> Samples:
        days = 10 if at < 100 else 3
        return {"geocomm_site_certificate_left_seconds": {SITE: 86400.0 * days}}

    evaluation, messages, found = Evaluation(), Messages(), list[tuple[float, str]]()
    for at in (0.0, 100.0, 200.0):
        found += [
            (at, alert.rule.severity.value) for _, alert in messages.news(at, evaluation.step(at, rows_of(run(at))))
        ]
    assert found == [(0.0, "warning"), (100.0, "critical")]
    assert [
        one.rule.severity.value for _, one in Messages().news(0.0, evaluation.step(300.0, rows_of(run(300.0))))
    ] == ["critical"]


def line(status: str = "firing", alert: str = "SiteSilent", severity: str = "warning", at: float = 1.0) -> Any:
    said = {"text": f"{alert} of b", "fix": "start it", "docs": "x"}
    return {
        "time": at,
        "status": status,
        "alert": alert,
        "severity": severity,
        "labels": {"site": "b"},
        "began": 1.0,
    } | said


def test_file_tells_what_fired_at_any_moment(tmp_path: Path) -> None:
    assert alert_log.firing(tmp_path, 9.0) == []
    alert_log.append(tmp_path, [line(at=1.0), line(at=2.0, severity="critical"), line(alert="MemberAway", at=3.0)])
    alert_log.append(tmp_path, [line("resolved", severity="critical", at=4.0), line("resolved", at=5.0)])
    with RunDir(tmp_path).alerts.open("a") as file:
        file.write('{"half')

    def names(at: float) -> list[tuple[str, str]]:
        return [(one["alert"], one["severity"]) for one in alert_log.firing(tmp_path, at)]

    assert names(1.0) == [("SiteSilent", "warning")]
    assert names(3.0) == [("SiteSilent", "critical"), ("MemberAway", "warning")]
    assert names(9.0) == [("MemberAway", "warning")]


@pytest.fixture
def receiver() -> Iterator[Webhook]:
    with webhook() as made:
        yield made


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_webhook_gets_what_alertmanager_sends(receiver: Webhook) -> None:
    receiver.refuses = 1  # the second try is taken
    lines: list[str] = []
    sent = AlertWebhook(receiver.url, lines.append)
    other = line(alert="MemberAway") | {"labels": {"site": "c"}}
    sent.put([line(), other, line("resolved", alert="LossNotFinite", severity="critical")])
    until(lambda: len(receiver.got) == 3)
    sent.close()
    assert [(one["status"], one["groupLabels"]) for one in receiver.got] == [
        ("firing", {"site": "b"}),
        ("resolved", {"site": "b"}),
        ("firing", {"site": "c"}),
    ]
    (alert,) = receiver.got[0]["alerts"]
    assert alert["labels"] == {"alertname": "GeocommSiteSilent", "severity": "warning", "site": "b"}
    assert (alert["startsAt"], alert["annotations"]["summary"]) == ("1970-01-01T00:00:01.000Z", "SiteSilent of b")
    assert as_text(receiver.got[1]) == "[resolved] GeocommLossNotFinite (critical): LossNotFinite of b"
    assert lines == []


def test_dead_webhook_costs_a_line_without_its_address_and_no_wait() -> None:
    lines: list[str] = []
    sent = AlertWebhook("http://127.0.0.1:1/token", lines.append)
    sent.put([line()])
    until(lambda: len(lines) == 1)
    sent.close()
    assert "GEOCOMM_ALERT_WEBHOOK" in lines[0]
    assert "token" not in lines[0]


def _until(is_so: Callable[[], bool]) -> None:
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.1)
    raise AssertionError("it is not so after a minute")


def test_alerts_go_on_after_neither_the_store_nor_their_file_could_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerting, "INTERVAL_S", 0.1)
    lines: list[str] = []

    def has_said(what: str) -> Callable[[], bool]:
        return lambda: any(what in line for line in list(lines))

    RunStore(tmp_path, write=True).close()
    file = RunDir(tmp_path).alerts
    file.mkdir()  # nobody can write to it
    with contextlib.closing(sqlite3.connect(RunDir(tmp_path).telemetry, timeout=30, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        running = alerting.Alerting(tmp_path, AlertWebhook(None, lines.append), lines.append)
        _until(has_said("no alert can begin or end now: database is locked"))
    now = time.time()
    with contextlib.closing(RunStore(tmp_path, write=True)) as store:
        number = itertools.count(1)

        def fires() -> bool:
            said = whole_report("good", next(number), "evil") | {"certificate_ends": now + 1000}
            reports.keep(store, reports.line(said).report, time.time())
            return has_said("alert CertificateExpiry (critical) firing")()

        _until(fires)
    assert has_said("alerts are evaluated again")()
    _until(has_said("they are written once that is possible"))
    assert alert_log.firing(tmp_path, now + 60) == []
    file.rmdir()
    _until(lambda: len(alert_log.firing(tmp_path, now + 60)) > 0)
    running.close()
    assert "CertificateExpiry" in {one["alert"] for one in alert_log.firing(tmp_path, now + 60)}


def test_an_error_of_the_program_is_told_and_the_next_evaluation_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerting, "INTERVAL_S", 0.1)
    RunStore(tmp_path, write=True).close()
    lines: list[str] = []
    asked = 0

    def applies() -> bool:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise KeyError("not foreseen")
        return True

    running = alerting.Alerting(tmp_path, AlertWebhook(None, lines.append), lines.append, applies)
    _until(lambda: "alerts are evaluated again" in lines)
    running.close()
    assert "not foreseen" in lines[0]
    assert len(lines) == 2
