"""The tables of metrics: names are unique, Prometheus names stay, and pages name only what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from geocomm.metrics import schema
from geocomm.metrics.counters import stats
from geocomm.metrics.schema import MetricKind
from geocomm.observe.telemetry.run_numbers import StoreNumbers
from support.metric_help import leans_on_another

DOCS = Path(__file__).parents[3] / "docs"
AT_THE_PAGE = {
    "geocomm_bottleneck_seconds",
    "geocomm_site_reports_dropped_total",
    *(StoreNumbers.metric(name) for name in StoreNumbers.numbers()),
}
"""Of all sites, from `geocomm dashboard` (tests/unit/observe)."""
# A contract: dashboards and alerts name them.
AT_THE_ENDPOINT = {
    "geocomm_operations_total",
    "geocomm_raw_bytes_sent_total",
    "geocomm_wire_bytes_sent_total",
    "geocomm_raw_bytes_received_total",
    "geocomm_wire_bytes_received_total",
    "geocomm_relayed_bytes_total",
    "geocomm_encode_seconds_total",
    "geocomm_decode_seconds_total",
    "geocomm_exposed_seconds_total",
    "geocomm_link_bytes_sent_total",
    "geocomm_link_bytes_received_total",
    "geocomm_link_payload_sent_total",
    "geocomm_link_payload_received_total",
    "geocomm_link_retransmitted_segments_total",
    "geocomm_link_retransmitted_bytes_total",
    "geocomm_link_tcp_bytes_sent_total",
    "geocomm_link_busy_seconds_total",
    "geocomm_link_min_rtt_seconds",
    "geocomm_link_delivery_rate_bytes_per_second",
    "geocomm_link_pacing_rate_bytes_per_second",
    "geocomm_link_window_bytes",
    "geocomm_link_unsent_bytes",
    "geocomm_link_clock_offset_seconds",
    "geocomm_link_clock_error_seconds",
    "geocomm_link_resumes_total",
    "geocomm_link_outages_total",
    "geocomm_link_outage_seconds_total",
    "geocomm_link_resent_segments_total",
    "geocomm_link_acks_total",
    "geocomm_link_stalled_by_receiver_seconds_total",
    "geocomm_link_stalled_by_send_buffer_seconds_total",
    "geocomm_link_rtt_seconds",
    "geocomm_link_streams",
    "geocomm_link_info",
    "geocomm_gradient_steps_total",
    "geocomm_gradient_skipped_steps_total",
    "geocomm_gradient_fallbacks_total",
    "geocomm_gradient_nmse",
    "geocomm_gradient_info",
    "geocomm_local_steps_total",
    "geocomm_local_tokens_total",
    "geocomm_local_every",
    "geocomm_local_rounds_total",
    "geocomm_local_rounds_not_finite_total",
    "geocomm_local_rounds_void_total",
    "geocomm_local_wire_bytes_total",
    "geocomm_local_waited_seconds_total",
    "geocomm_local_held_back_total",
    "geocomm_local_in_flight",
    "geocomm_local_oldest_in_flight",
    "geocomm_local_delta_norm",
    "geocomm_local_agreement",
    "geocomm_local_mean_norm",
    "geocomm_local_outer_step",
    "geocomm_local_residual_norm",
}


def shown() -> set[str]:
    return {metric.prometheus for metrics in schema.TABLES.values() for metric in metrics if metric.prometheus}


def test_prometheus_names_are_those_that_dashboards_know() -> None:
    assert shown() == AT_THE_ENDPOINT


@pytest.mark.parametrize("place", schema.TABLES)
def test_name_occurs_once_in_its_table(place: str) -> None:
    names = schema.names(schema.TABLES[place])
    assert len(names) == len(set(names))


def test_rows_are_not_at_the_endpoint() -> None:
    for metrics in schema.TABLES.values():
        assert not any(metric.in_prometheus for metric in metrics if metric.kind is MetricKind.ROWS)


def test_stats_of_a_process_without_a_group_have_the_totals_of_the_schema() -> None:
    assert list(stats()) == schema.names(schema.TOTALS)


def test_help_of_stats_tells_every_metric() -> None:
    told = stats.__doc__ or ""
    missing = [
        metric.name
        for metrics in schema.TABLES.values()
        for metric in metrics
        if f"- {metric.name}: {metric.help}" not in told
    ]
    assert not missing


def test_help_at_the_endpoint_stands_alone() -> None:
    shown = [one for metrics in schema.TABLES.values() for one in metrics if one.in_prometheus]
    assert not [f"{one.name}: {one.help}" for one in shown if leans_on_another(one.help)]


def test_pages_name_only_metrics_that_are_at_the_endpoint() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    monitor = (DOCS / "how-to/monitor-with-prometheus.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\bgeocomm_\w+(?:_total|_seconds|_info|_nmse|_streams)\b", text))
    # Its table leaves the first word out.
    table = monitor.split("| in Prometheus (`geocomm_…`) |")[1].split("\n\n")[0]
    rows = ["".join(re.findall(r"`[^`]+`", line.split("|")[2])) for line in table.splitlines()[2:]]
    named |= {f"geocomm_{name}" for row in rows for name in re.findall(r"[a-z][a-z_]+", row)}
    assert len(named) > len(AT_THE_ENDPOINT) / 2
    assert named <= shown() | AT_THE_PAGE
