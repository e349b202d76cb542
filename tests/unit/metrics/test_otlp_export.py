"""Metrics over OTLP: what a receiver gets of a process, that a forked child adds nothing, and what is missing."""

from __future__ import annotations

import gzip
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from geocomm.core.errors import UnsupportedError
from geocomm.core.options import Options
from geocomm.metrics.exporters import OtlpExport, Reporting, check_reporting
from unit.metrics.test_prometheus_endpoint import ROW, STATS

proto = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")


TOLD = STATS | {"peers": [ROW], "gradients": [], "local_steps": []}


class Receiver:
    """Takes exports over HTTP, as OpenTelemetry's collector does."""

    def __init__(self) -> None:
        received = self.received = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                received.append((self.path, proto.ExportMetricsServiceRequest.FromString(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def points(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Of the last export, by name and labels."""
        (resource,) = self.received[-1][1].resource_metrics
        return {
            (metric.name, tuple(sorted((one.key, one.value.string_value) for one in point.attributes))): (
                point.as_double if point.HasField("as_double") else point.as_int
            )
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in (metric.sum if metric.HasField("sum") else metric.gauge).data_points
        }


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    made = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{made.server.server_port}")
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_receiver_gets_every_metric_with_its_labels_and_the_resource(receiver: Receiver) -> None:
    export = OtlpExport(3, "rome", lambda: TOLD)
    export.close()  # exports once more
    path, request = receiver.received[-1]
    assert path == "/v1/metrics"
    attributes = {one.key: one.value.string_value for one in request.resource_metrics[0].resource.attributes}
    assert attributes["service.name"] == "geocomm"
    points = receiver.points()
    own = (("rank", "3"), ("site", "rome"))
    assert points["geocomm_operations", own] == TOLD["operations"]
    assert points["geocomm_raw_bytes_sent", own] == TOLD["raw_bytes_sent"]
    links = [labels for name, labels in points if name == "geocomm_link_rtt_seconds"]
    assert len(links) == 1
    assert dict(links[0]).keys() == {"rank", "site", "peer", "peer_site"}


def test_forked_child_sends_nothing_of_its_parent(receiver: Receiver) -> None:
    export = OtlpExport(0, "a", lambda: TOLD)
    child = os.fork()
    if child == 0:
        export._provider.force_flush()
        os._exit(0)
    os.waitpid(child, 0)
    assert not receiver.received
    export.close()
    assert receiver.points()


def test_missing_package_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    with pytest.raises(UnsupportedError, match=r"metrics_otlp \(GEOCOMM_METRICS_OTLP\) needs OpenTelemetry's exporter"):
        check_reporting(Options(metrics_otlp=True))


def test_receiver_that_is_away_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    reporting = Reporting()
    reporting.start(Options(metrics_otlp=True), 0, lambda: None)
    reporting.stop()
