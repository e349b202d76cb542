"""The Prometheus endpoint: names, labels, addresses, what is missing."""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from geocomm.core.errors import UnsupportedError
from geocomm.core.installation import install_command
from geocomm.core.options import Options
from geocomm.metrics import schema
from geocomm.metrics.exporters import MetricsServer, Reporting, RowCollector, check_reporting

prometheus_client = pytest.importorskip("prometheus_client")
parser = pytest.importorskip("prometheus_client.parser")

ROW = {
    "peer": "rank 2 (site rome, 127.0.0.1:4000)",
    "rank": 2,
    "site": "rome",
    "bytes_sent": 100,
    "bytes_received": 200,
    "payload_sent": 90,
    "payload_received": 180,
    "retransmitted_segments": 7,
    "retransmitted_bytes": 9100,
    "tcp_bytes_sent": 9300,
    "busy_us": 4_000_000,
    "resumes": 1,
    "outages": 1,
    "outage_us": 1_250_000,
    "resent_segments": 3,
    "acks": 11,
    "stalled_by_receiver_us": 2_500_000,
    "stalled_by_send_buffer_us": 500_000,
    "rtt_us": 80_000,
    "min_rtt_us": 60_000,
    "delivery_rate": 1000,
    "pacing_rate": 1200,
    "window_bytes": 64_000,
    "unsent_bytes": 10,
    "clock_offset_us": -2_500_000,
    "clock_error_us": 250_000,
    "streams": 4,
    "congestion_control": "bbr",
}
STATS = {
    "operations": 5,
    "raw_bytes_sent": 4000,
    "wire_bytes_sent": 1000,
    "raw_bytes_received": 4000,
    "wire_bytes_received": 1000,
    "relayed_bytes": 250,
    "encode_seconds": 0.25,
    "decode_seconds": 0.75,
    "exposed_seconds": 1.5,
    "ratio": 4.0,
    "groups": [],
    "gradients": [],
    "local_steps": [],
}

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples_of(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(server: MetricsServer, host: str = "127.0.0.1") -> Samples:
    with urllib.request.urlopen(f"http://{host}:{server.port}/metrics", timeout=30) as answer:
        return samples_of(answer.read().decode())


def key(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted(({"site": "berlin", "rank": "0"} | labels).items()))


@contextmanager
def serving(
    read_stats: Callable[[], dict[str, Any]], address: str = "127.0.0.1", port: int = 0
) -> Iterator[MetricsServer]:
    server = MetricsServer(address, port, 0, "berlin", read_stats)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    with serving(lambda: STATS | {"peers": [ROW]}) as server:
        yield server


def test_scrape_has_every_counter_under_its_name_and_labels(server: MetricsServer) -> None:
    link = {"peer": "2", "peer_site": "rome"}
    expected = {
        key(f"geocomm_{name}_total"): value
        for name, value in STATS.items()
        if name not in ("ratio", "groups", "gradients", "local_steps")
    }
    for name in ("bytes_sent", "bytes_received", "payload_sent", "payload_received"):
        expected[key(f"geocomm_link_{name}_total", **link)] = ROW[name]
    for name in ("resumes", "outages", "resent_segments", "acks", "tcp_bytes_sent", "retransmitted_segments"):
        expected[key(f"geocomm_link_{name}_total", **link)] = ROW[name]
    expected[key("geocomm_link_outage_seconds_total", **link)] = 1.25
    expected[key("geocomm_link_stalled_by_receiver_seconds_total", **link)] = 2.5
    expected[key("geocomm_link_stalled_by_send_buffer_seconds_total", **link)] = 0.5
    expected[key("geocomm_link_rtt_seconds", **link)] = 0.08
    expected[key("geocomm_link_retransmitted_bytes_total", **link)] = 9100
    expected[key("geocomm_link_min_rtt_seconds", **link)] = 0.06
    expected[key("geocomm_link_busy_seconds_total", **link)] = 4
    expected[key("geocomm_link_clock_offset_seconds", **link)] = -2.5
    expected[key("geocomm_link_clock_error_seconds", **link)] = 0.25
    for name in ("delivery_rate", "pacing_rate"):
        expected[key(f"geocomm_link_{name}_bytes_per_second", **link)] = ROW[name]
    for name in ("window_bytes", "unsent_bytes"):
        expected[key(f"geocomm_link_{name}", **link)] = ROW[name]
    expected[key("geocomm_link_streams", **link)] = 4
    expected[key("geocomm_link_info", **link, congestion_control="bbr")] = 1
    assert scrape(server) == expected


def test_scrape_of_a_replaced_peer_adds_its_two_links() -> None:
    peers = [ROW, ROW | {"peer": "another port", "rtt_us": 90_000}]
    with serving(lambda: STATS | {"peers": peers}) as server:
        with_both = scrape(server)
    assert with_both[key("geocomm_link_bytes_sent_total", peer="2", peer_site="rome")] == 200
    assert with_both[key("geocomm_link_rtt_seconds", peer="2", peer_site="rome")] == 0.09


def test_scrape_shows_gradient_hooks() -> None:
    hook = {"kind": "ddp", "steps": 9, "skipped_steps": 2, "codec": "balanced", "fallbacks": [{"codec": "balanced"}]}
    rows = [hook | {"buckets": [{"nmse": 0.2}, {"nmse": 0.4}, {"elements": 3}]}, hook | {"kind": "fsdp", "buckets": []}]
    with serving(lambda: STATS | {"peers": [], "gradients": rows}) as server:
        scraped = scrape(server)
    assert scraped[key("geocomm_gradient_steps_total", hook="ddp0")] == 9
    assert scraped[key("geocomm_gradient_skipped_steps_total", hook="fsdp1")] == 2
    assert scraped[key("geocomm_gradient_fallbacks_total", hook="ddp0")] == 1
    assert scraped[key("geocomm_gradient_nmse", hook="ddp0")] == 0.4
    assert key("geocomm_gradient_nmse", hook="fsdp1") not in scraped
    assert scraped[key("geocomm_gradient_info", hook="fsdp1", codec="balanced")] == 1


def test_scrape_of_an_unknown_peer_says_its_description() -> None:
    with serving(lambda: STATS | {"peers": [ROW | {"rank": None, "site": None}]}) as server:
        assert key("geocomm_link_acks_total", peer=ROW["peer"], peer_site="") in scrape(server)


def test_scrape_while_counters_fail_is_an_error_and_the_next_one_works() -> None:
    answers = iter([RuntimeError("no counters"), STATS | {"peers": []}])

    def read() -> dict[str, Any]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with serving(read) as server:
        with pytest.raises(urllib.error.HTTPError):
            scrape(server)
        assert scrape(server)[key("geocomm_operations_total")] == 5


def test_closed_server_frees_its_port() -> None:
    stats = STATS | {"peers": []}
    with serving(lambda: stats) as server:
        scrape(server)
    with serving(lambda: stats, port=server.port) as again:
        assert scrape(again)
    with pytest.raises(urllib.error.URLError):
        scrape(again)


def test_reporting_with_a_taken_port_tells_and_goes_on(server: MetricsServer, caplog: pytest.LogCaptureFixture) -> None:
    reporting = Reporting()
    reporting.start(Options(metrics_port=server.port), 0, lambda: None)
    reporting.stop()
    (told,) = caplog.messages
    assert str(server.port) in told


def test_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UnsupportedError, match=re.escape(install_command("metrics"))):
        check_reporting(Options(metrics_port=9400))
    check_reporting(Options())


def test_registering_reads_no_counters() -> None:
    prometheus_client.CollectorRegistry().register(RowCollector(lambda: pytest.fail("read")))


def test_scrape_shows_local_steps() -> None:
    run = dict.fromkeys(schema.names(schema.LOCAL_STEPS), 0) | {"steps": 40, "rounds": 3, "waited_seconds": 0.5}
    rows = [run | {"delta_norm": None}, run | {"steps": 7, "delta_norm": 1.5, "oldest_in_flight": 4}]
    with serving(lambda: STATS | {"peers": [], "local_steps": rows}) as server:
        scraped = scrape(server)
    assert scraped[key("geocomm_local_steps_total", run="0")] == 40
    assert scraped[key("geocomm_local_waited_seconds_total", run="1")] == 0.5
    assert scraped[key("geocomm_local_delta_norm", run="1")] == 1.5
    assert key("geocomm_local_delta_norm", run="0") not in scraped
    assert scraped[key("geocomm_local_oldest_in_flight", run="1")] == 4
