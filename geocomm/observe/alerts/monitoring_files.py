"""Files for Prometheus, Alertmanager and Grafana, made of the tables of metrics and alerts."""

from __future__ import annotations

import json
from typing import Any

import yaml

from geocomm.observe.alerts.alert_rules import INHIBITIONS, PREFIX, prometheus_rules
from geocomm.observe.telemetry.numbers import NumberRow
from geocomm.observe.telemetry.overview_links import LinkState
from geocomm.observe.telemetry.overview_sites import SiteOverview
from geocomm.observe.telemetry.run_numbers import Heard

JOB = "geocomm"
_RULES = "geocomm-alerts.yml"
_SCRAPE = "5s"
_SOURCE = "geocomm-prometheus"
_PANELS: tuple[tuple[type[NumberRow], tuple[str, ...]], ...] = (
    (SiteOverview, ("loss", "tokens_per_second", "step_seconds", "exposed_share")),
    (LinkState, ("bytes_per_second", "retransmitted_share", "rtt_seconds", "busy_share")),
)
_UNITS = {"_bytes_per_second": "Bps", "_seconds": "s", "_ratio": "percentunit"}


def rules_text() -> str:
    """A rules file of Prometheus."""
    head = f"# Alerts of geocomm, for Prometheus 2.42 or later. Its job {JOB} scrapes /metrics of geocomm dashboard.\n"
    return head + _yaml(prometheus_rules())


def monitoring_files(target: str) -> dict[str, str]:
    """Texts by path. target: host:port of `geocomm dashboard`."""
    return {
        "prometheus.yml": "# A dashboard that asks for a token: add authorization: {credentials: TOKEN} to the job.\n"
        + _yaml(_prometheus(target)),
        _RULES: rules_text(),
        "alertmanager.yml": "# Say in the receiver where messages go: "
        "https://prometheus.io/docs/alerting/latest/configuration/#receiver-integration-settings\n"
        + _yaml(_alertmanager()),
        "grafana/provisioning/datasources/geocomm.yml": _yaml(_grafana_source()),
        "grafana/provisioning/dashboards/geocomm.yml": "# path: where the folder grafana/dashboards is mounted\n"
        + _yaml(_grafana_provider()),
        "grafana/dashboards/geocomm.json": json.dumps(_grafana_dashboard(), indent=1) + "\n",
    }


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, width=10_000)


def _prometheus(target: str) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": _SCRAPE, "evaluation_interval": _SCRAPE},
        "rule_files": [_RULES],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": ["localhost:9093"]}]}]},
        "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": [target]}]}],
    }


def _alertmanager() -> dict[str, Any]:
    watchdog = {"receiver": "watchdog", "matchers": [f'alertname="{PREFIX}Watchdog"'], "repeat_interval": "5m"}
    return {
        "route": {
            "receiver": "team",
            "group_by": ["site"],
            "group_wait": _SCRAPE,
            "group_interval": "5m",
            "repeat_interval": "4h",
            "routes": [watchdog],
        },
        "receivers": [{"name": "team"}, {"name": "watchdog"}],
        "inhibit_rules": [one.matchers() for one in INHIBITIONS],
    }


def _grafana_source() -> dict[str, Any]:
    source = {"name": "geocomm", "uid": _SOURCE, "type": "prometheus", "access": "proxy"}
    return {"apiVersion": 1, "datasources": [{**source, "url": "http://localhost:9090"}]}


def _grafana_provider() -> dict[str, Any]:
    folder = {"path": "/var/lib/grafana/dashboards"}
    return {"apiVersion": 1, "providers": [{"name": "geocomm", "type": "file", "options": folder}]}


def _grafana_dashboard() -> dict[str, Any]:
    shown = [
        *(
            (kind.metric(field), kind.numbers()[field].help, " > ".join(f"{{{{{name}}}}}" for name in kind.LABELS))
            for kind, fields in _PANELS
            for field in fields
        ),
        (Heard.metric("age_seconds"), "time since each rank of the site was heard", "{{site}}"),
        (f'ALERTS{{alertname=~"{PREFIX}.*",alertstate="firing"}}', "alerts", "{{alertname}} {{site}} {{peer_site}}"),
    ]
    return {
        "uid": "geocomm",
        "title": "geocomm",
        "schemaVersion": 39,
        "refresh": _SCRAPE,
        "time": {"from": "now-1h", "to": "now"},
        "panels": [_panel(number, *one) for number, one in enumerate(shown)],
    }


def _panel(number: int, query: str, text: str, legend: str) -> dict[str, Any]:
    unit = next((unit for ending, unit in _UNITS.items() if query.endswith(ending)), "short")
    name = query.partition("{")[0].removeprefix("geocomm_").replace("_", " ")
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": name,
        "description": text,
        "datasource": {"type": "prometheus", "uid": _SOURCE},
        "gridPos": {"x": 12 * (number % 2), "y": 8 * (number // 2), "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [{"refId": "A", "expr": query, "legendFormat": legend}],
    }
