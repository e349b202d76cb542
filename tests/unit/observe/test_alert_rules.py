"""The table of alerts: each rule fires and is quiet, here and in Prometheus, and both agree on any series."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from geocomm.core.run_dir import RunDir
from geocomm.core.units import DAY_S
from geocomm.elastic.journal.run_state import SiteRecord, Standing
from geocomm.observe.alerts.alert_rules import (
    PREFIX,
    RULES,
    SITE_SILENT,
    AlertRule,
    Severity,
    annotations_of,
    prometheus_rules,
)
from geocomm.observe.alerts.alerting import Evaluation
from geocomm.observe.alerts.monitoring_files import monitoring_files
from geocomm.observe.telemetry.numbers import Labels, NumberRow
from geocomm.observe.telemetry.overview import overview
from geocomm.observe.telemetry.overview_sites import SiteOverview
from geocomm.observe.telemetry.run_store import RunStore
from geocomm.observe.telemetry.store_folder import StoreFolder
from support.metric_samples import rows_of, samples
from support.recorded_run import record

STEP_S = 30
SITE: Labels = (("site", "b"),)
LINK: Labels = (("peer_site", "b"), ("site", "a"))
GIB = float(1 << 30)

promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")

Values = Sequence[float | None]
Run = Mapping[tuple[str, Labels], Values]
"""Values each STEP_S by metric and labels; None: the metric is not there then."""


def site(**values: float | tuple[float, float]) -> dict[tuple[str, Labels], list[float]]:
    """Metrics of site b over 20 minutes: (first, growth each 30 s), or a number that stays."""
    return {(f"geocomm_{name}", SITE): _line(value) for name, value in values.items()}


def link(**values: float | tuple[float, float]) -> dict[tuple[str, Labels], list[float]]:
    return {(f"geocomm_site_link_{name}", LINK): _line(value) for name, value in values.items()}


def _line(value: float | tuple[float, float]) -> list[float]:
    first, growth = value if isinstance(value, tuple) else (value, 0.0)
    return [first + growth * number for number in range(41)]


def event(kind: str, count: float) -> dict[tuple[str, Labels], list[float]]:
    return {("geocomm_site_recent_events", (("kind", kind), *SITE)): _line(count)}


def plain(**values: float) -> dict[tuple[str, Labels], list[float]]:
    return {(f"geocomm_{name}", ()): _line(value) for name, value in values.items()}


BUSY = {"planned_rate_bytes_per_second": 1e7, "busy_ratio": 0.95, "rtt_seconds": 0.16, "least_rtt_seconds": 0.1}
# What fires at the end of 20 minutes, and what does not but is close. Severities: w(arning), c(ritical).
CASES: dict[str, tuple[Run, str, Run]] = {
    "SiteSilent": (site(site_report_age_seconds=121), "wc", site(site_report_age_seconds=15)),
    "TrainingStalled": (
        site(train_step_age_seconds=(0, 30), train_mean_step_seconds=100),
        "c",
        site(train_step_age_seconds=(0, 30), train_mean_step_seconds=250),
    ),
    "LossNotFinite": (site(train_ranks_not_finite=1), "c", site(train_ranks_not_finite=0)),
    "LossSpike": (
        site(train_loss_least=(2.0, 0.02), train_loss_median=2.0, train_loss_spread=0.1, train_loss_settling=0),
        "w",
        site(train_loss_least=2.8, train_loss_median=2.0, train_loss_spread=0.01, train_loss_settling=1),
    ),
    "WeightsNotFinite": (
        site(train_rounds_not_finite_total=(0, 1)),
        "c",
        site(train_rounds_not_finite_total=7),
    ),
    "ReplicasDiverged": (event("replicas_differ", 1), "c", event("replicas_differ", 0)),
    "ResidualGuard": (event("codec_fallback", 1), "w", event("checkpoint", 3)),
    "Straggler": (site(train_pace_ratio=0.6), "w", site(train_pace_ratio=0.75)),
    "LinkBelowPlan": (
        link(rate_bytes_per_second=6e6, **BUSY),
        "w",
        link(rate_bytes_per_second=6e6, **BUSY | {"rtt_seconds": 0.1}),  # waits for answers, not for the line
    ),
    "Retransmits": (
        link(tcp_sent_bytes_total=(0, 1e7), retransmitted_bytes_total=(0, 2e5)),
        "w",
        link(tcp_sent_bytes_total=(1e7, 1e3), retransmitted_bytes_total=(9e5, 5e2)),  # much, of nearly nothing
    ),
    "RttInflated": (
        link(rtt_seconds=0.4, least_rtt_seconds=0.1),
        "w",
        link(rtt_seconds=0.05, least_rtt_seconds=0.0001),
    ),
    "LinkOutages": (
        link(worst_pair_outages_total=(0, 0.2)),
        "w",
        link(worst_pair_outages_total=(9, 0.05)),
    ),
    "ClockSkew": (
        link(clock_offset_seconds=-3.0, clock_error_seconds=0.1),
        "wc",
        link(clock_offset_seconds=0.12, clock_error_seconds=0.1),
    ),
    "CertificateExpiry": (
        site(site_certificate_left_seconds=10 * DAY_S),
        "w",
        site(site_certificate_left_seconds=15 * DAY_S),
    ),
    "EgressBudget": (
        site(site_egress_dollars_total=(100, 0.1), site_egress_budget_dollars=72),  # 4 in 20 minutes
        "w",
        site(site_egress_dollars_total=(100, 0.1), site_egress_budget_dollars=120),
    ),
    "DiskFull": (
        plain(disk_free_bytes=4 * GIB, disk_size_bytes=100 * GIB),
        "c",
        plain(disk_free_bytes=40 * GIB, disk_size_bytes=1000 * GIB),
    ),
    "RunDiskFull": (
        site(site_disk_free_bytes=4 * GIB, site_disk_size_bytes=100 * GIB),
        "c",
        site(site_disk_free_bytes=4 * GIB, site_disk_size_bytes=10 * GIB),
    ),
    "CheckpointOld": (
        site(train_checkpoint_age_seconds=1900, train_checkpoint_interval_seconds=600),
        "w",
        site(train_checkpoint_age_seconds=200, train_checkpoint_interval_seconds=60),
    ),
    "MemberAway": (
        site(member_away=1, member_not_ready=0),
        "w",
        site(member_away=1, member_not_ready=(1, -0.001)),  # what it is then lasts less than the other alert waits
    ),
    "MemberNotReady": (site(member_away=0, member_not_ready=1), "w", site(member_away=0, member_not_ready=0)),
    "LeaderInDoubt": (plain(leader_in_doubt=1), "c", plain(leader_in_doubt=0)),
    "FrameLeftOut": (
        site(leader_frames_left_out_total=(0, 1)),
        "w",
        site(leader_frames_left_out_total=3),
    ),
    "AverageWrong": (
        site(leader_averages_wrong_total=(0, 1)),
        "c",
        site(leader_averages_wrong_total=1),
    ),
    "SnapshotLost": (event("snapshot_lost", 1), "w", event("snapshot_lost", 0)),
    "SnapshotNotKept": (plain(snapshot_not_kept=1), "w", plain(snapshot_not_kept=0)),
    "TelemetryLost": (
        site(site_reports_total=(0, 30), site_reports_dropped_total=(0, 1)),
        "w",
        site(site_reports_total=(900, 30), site_reports_dropped_total=900),
    ),
    "DashboardDown": (
        {("up", (("job", "geocomm"),)): _line(0)},
        "w",
        {("up", (("job", "geocomm"),)): _line(1)},
    ),
}
SEVERITIES = {"w": "warning", "c": "critical"}
Found = set[tuple[str, str, Labels]]


def embedded(run: Run) -> list[Found]:
    """What the collector finds, step by step."""
    evaluation, found = Evaluation(), list[Found]()
    for number in range(max(map(len, run.values()))):
        now: dict[str, dict[Labels, float]] = {}
        for (name, labels), values in run.items():
            if (value := values[number]) is not None:
                now.setdefault(name, {})[labels] = value
        found.append({alert.key for alert in evaluation.step(number * STEP_S, rows_of(now))})
    return found


def check_with_promtool(folder: Path, cases: Sequence[tuple[Run, Mapping[int, Found]]]) -> None:
    """Fail where Prometheus's own engine finds other alerts. cases: series, and what is found at some steps."""
    rules = folder / "rules.yml"
    rules.write_text(yaml.safe_dump(prometheus_rules()))
    tests = [
        {
            "interval": f"{STEP_S}s",
            "input_series": [
                {"series": _series(*key), "values": " ".join("stale" if one is None else f"{one!r}" for one in values)}
                for key, values in run.items()
            ],
            "alert_rule_test": [
                {
                    "eval_time": f"{number * STEP_S}s",
                    "alertname": PREFIX + name,
                    "exp_alerts": [_expected(*key) for key in found if key[0] == name],
                }
                for number, found in expected.items()
                for name in sorted({rule.name for rule in RULES} - {"Watchdog"})
            ],
        }
        for run, expected in cases
    ]
    test = folder / "test.yml"
    test.write_text(
        yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": f"{STEP_S}s", "tests": tests}, width=10**6)
    )
    done = subprocess.run(["promtool", "test", "rules", test], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _series(name: str, labels: Labels) -> str:
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in labels) + "}"


def _rule(name: str, severity: str) -> AlertRule:
    return next(rule for rule in RULES if (rule.name, rule.severity) == (name, severity))


def _expected(name: str, severity: str, labels: Labels) -> dict[str, Any]:
    more = {"peer_site": dict(labels)["site"]} if name == SITE_SILENT else {}
    said = annotations_of(_rule(name, severity), dict(labels))
    return {"exp_labels": {**dict(labels), **more, "severity": severity}, "exp_annotations": said}


def _case(name: str) -> tuple[Run, Found, Run]:
    run, severities, quiet = CASES[name]
    labels = next(iter(run))[1]
    return run, {(name, SEVERITIES[one], labels) for one in severities}, quiet


def test_every_rule_has_a_case_and_its_metrics_are_at_the_endpoint(tmp_path: Path) -> None:
    assert set(CASES) == {rule.name for rule in RULES} - {"Watchdog"}
    record(tmp_path / "run", 2, 1, 0.0, 70)
    member = SiteRecord("tokyo", Standing.AWAY, "", 0)
    there = samples(overview(RunStore(tmp_path / "run"), 70.0), StoreFolder(1, 2, (member,), site="tokyo"))
    assert there["geocomm_member_away"] == {(("site", "tokyo"),): 1.0}
    for rule in RULES:
        for name in re.findall(r"geocomm_\w+", rule.promql()):
            assert name in there, rule.name
            labels = {label for series in there[name] for label, _ in series}
            assert set(rule.labels) <= labels or not there[name]


def test_number_that_no_row_has_or_that_is_not_at_the_endpoint_is_refused_in_a_condition() -> None:
    with pytest.raises(KeyError, match="nothing"):
        AlertRule("X", Severity.WARNING, SiteOverview, 0, lambda site: site.nothing > 1, "{site}", "").promql()
    with pytest.raises(KeyError, match=r"bytes_sent is not at /metrics"):
        AlertRule("X", Severity.WARNING, SiteOverview, 0, lambda site: site.bytes_sent > 1, "{site}", "").promql()


def test_disk_of_a_store_in_a_run_folder_is_that_of_its_site(tmp_path: Path) -> None:
    record(tmp_path, 2, 1, 0.0, 3)
    seen = overview(RunStore(tmp_path), 3.0)
    assert list(samples(seen, StoreFolder.look(tmp_path))["geocomm_disk_free_bytes"]) == [()]
    RunDir(tmp_path).about.write_text('{"site": "tokyo", "doubt": "site b leads too"}')
    there = samples(seen, StoreFolder.look(tmp_path))
    assert list(there["geocomm_disk_free_bytes"]) == [(("site", "tokyo"),)]
    assert list(there["geocomm_leader_in_doubt"].values()) == [1.0]


@pytest.mark.parametrize("name", CASES)
def test_rule_fires_and_is_quiet(name: str) -> None:
    run, expected, quiet = _case(name)
    if next(rule for rule in RULES if rule.name == name).of is not NumberRow:
        assert embedded(run)[-1] == expected
        assert embedded(quiet)[-1] == set()


@pytest.mark.slow  # the one below asks Prometheus too
@promtool
def test_rule_fires_and_is_quiet_in_prometheus(tmp_path: Path) -> None:
    cases: list[tuple[Run, Mapping[int, Found]]] = []
    for name in CASES:
        run, expected, quiet = _case(name)
        cases += [(run, {40: expected}), (quiet, {40: set()})]
    check_with_promtool(tmp_path, cases)


def runs() -> st.SearchStrategy[Run]:
    """Any series of all metrics: values at which rules change their mind, for some minutes each, and gaps."""
    known: dict[tuple[str, Labels], set[float]] = {}
    for firing, _, quiet in CASES.values():
        for key, values in (*firing.items(), *quiet.items()):
            if key[0] != "up":
                known.setdefault(key, set()).update(values[n] or 0.0 for n in (0, 9, 40))
    return st.fixed_dictionaries({
        key: st.lists(
            st.tuples(st.one_of(st.none(), *[st.sampled_from(sorted(some))] * 4), st.integers(1, 25)),
            min_size=12,
            max_size=12,
        ).map(lambda pieces: [value for value, length in pieces for _ in range(length)][:60] + [None] * 60)
        for key, some in known.items()
    }).map(lambda run: {key: values[:60] for key, values in run.items()})  # fmt: skip


@promtool
@pytest.mark.property
# Without shrinking, which would start promtool for minutes.
@settings(max_examples=10, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(runs())
def test_collector_and_prometheus_find_the_same_alerts_on_the_same_series(
    tmp_path_factory: pytest.TempPathFactory, run: Run
) -> None:
    found = embedded(run)
    check_with_promtool(tmp_path_factory.mktemp("rules"), [(run, {number: found[number] for number in range(60)})])


@promtool
def test_files_for_monitoring_are_taken(tmp_path: Path) -> None:
    for name, text in monitoring_files("localhost:8420").items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    commands = [["promtool", "check", "config", "prometheus.yml"]]
    if shutil.which("amtool"):
        commands.append(["amtool", "check-config", "alertmanager.yml"])
    for command in commands:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_finds_the_source_of_each_panel_and_no_panel_lies_on_another() -> None:
    files = monitoring_files("localhost:8420")
    sources, providers = (
        yaml.safe_load(files[f"grafana/provisioning/{kind}/geocomm.yml"]) for kind in ("datasources", "dashboards")
    )
    assert (sources["apiVersion"], providers["apiVersion"]) == (1, 1)
    panels = json.loads(files["grafana/dashboards/geocomm.json"])["panels"]
    assert {panel["datasource"]["uid"] for panel in panels} == {sources["datasources"][0]["uid"]}
    places = [tuple(panel["gridPos"][name] for name in "xywh") for panel in panels]
    cells = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
    assert len(cells) == len(set(cells))
    assert {x for x, _ in cells} == set(range(24))  # Grafana's columns
    assert len({panel["id"] for panel in panels}) == len(panels)
