"""What leaves a real job of two sites: a scraped endpoint, reports, events; and that none of them can harm it."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from geocomm.core.installation import install_command
from geocomm.observe.telemetry.report import Report
from geocomm.observe.telemetry.run_store import RunStore
from support.harness import Ranks
from support.local_jobs import free_ports
from support.warm_ranks import warm_ranks

ELEMENTS = 100_000
RAW_BYTES = 4 * ELEMENTS
LINK = {
    "peer",
    "rank",
    "site",
    "bytes_sent",
    "bytes_received",
    "payload_sent",
    "payload_received",
    "retransmitted_segments",
    "retransmitted_bytes",
    "tcp_bytes_sent",
    "busy_us",
    "resumes",
    "outages",
    "outage_us",
    "resent_segments",
    "acks",
    "early_bytes_held",
    "early_bytes_sent",
    "stalled_by_receiver_us",
    "stalled_by_send_buffer_us",
    "rtt_us",
    "min_rtt_us",
    "delivery_rate",
    "pacing_rate",
    "window_bytes",
    "unsent_bytes",
    "clock_offset_us",
    "clock_error_us",
    "streams",
    "congestion_control",
}


def _reduce(count: int) -> float:
    tensor = torch.ones(ELEMENTS)
    for _ in range(count):
        dist.all_reduce(tensor)
    return tensor[0].item()


def _stats() -> dict[str, Any]:
    import geocomm

    return geocomm.stats()


def _reporting_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "geocomm" in thread.name or "serve" in thread.name]


def _hide_prometheus_client() -> None:
    sys.modules["prometheus_client"] = None  # type: ignore[assignment]


def _scrape(port: int) -> dict[str, tuple[float, dict[str, str]]]:
    """Sample → (value, labels); names occur once where there is one peer."""
    parser = pytest.importorskip("prometheus_client.parser")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        families = parser.text_string_to_metric_families(answer.read().decode())
    return {sample.name: (sample.value, sample.labels) for family in families for sample in family.samples}


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def _events(kind: str) -> list[dict[str, Any]]:
    from geocomm.metrics.events import EventReader, events

    return [event.line() for event in EventReader(events).take() if event.kind == kind]


def _refresh() -> None:
    import geocomm

    geocomm.refresh_links()


def test_job_of_two_sites_is_scraped_and_leaves_its_reports(tmp_path: Path) -> None:
    ports = free_ports(2)
    common = {"GEOCOMM_CODEC": "int8", "GEOCOMM_TELEMETRY": str(tmp_path / "telemetry")}
    each = {rank: {"GEOCOMM_METRICS_PORT": str(port)} for rank, port in enumerate(ports)}
    with Ranks(["rome", "berlin"], environment=common, environment_of=each) as ranks:
        ranks.init()
        _wait_until((tmp_path / "telemetry/reports.sock").exists)
        assert ranks.run(_reduce, 3) == pytest.approx([8.0, 8.0], rel=0.01)
        stats = ranks.run(_stats)
        scraped = [_scrape(port) for port in ports]
        ranks.destroy()
        for port in ports:  # it ended with the last group
            with pytest.raises(urllib.error.URLError):
                _scrape(port)
        assert ranks.run(_reporting_threads) == [[], []]
        with contextlib.closing(RunStore(tmp_path / "telemetry")) as store:  # no geocomm run: the ranks keep it
            _wait_until(lambda: [said.report.final for said in store.latest()] == [True, True])
            reports = {said.report.rank: said.report for said in store.latest()}
            assert len([row for _, row in store.rows("operations") if row["kind"] == "all_reduce"]) == 6

        for rank, (site, other) in enumerate((("rome", "berlin"), ("berlin", "rome"))):
            (peer,) = stats[rank]["peers"]
            assert peer.keys() >= LINK
            assert (peer["rank"], peer["site"]) == (1 - rank, other)
            assert 3.5 < stats[rank]["ratio"] < 4
            value, labels = scraped[rank]["geocomm_raw_bytes_sent_total"]
            assert (value, labels) == (3 * RAW_BYTES, {"site": site, "rank": str(rank)})
            value, labels = scraped[rank]["geocomm_link_payload_sent_total"]
            assert labels == {"site": site, "rank": str(rank), "peer": str(1 - rank), "peer_site": other}
            assert value >= peer["payload_sent"] > 3 * RAW_BYTES / 4
            assert scraped[rank]["geocomm_link_streams"][0] == peer["streams"] > 0

            report = reports[rank]
            assert (report.site, report.stats["operations"]) == (site, 3)
            assert report.stats["raw_bytes_sent"] == 3 * RAW_BYTES
            assert report.stats["peers"][0]["bytes_sent"] >= peer["bytes_sent"]
            assert report.stats["peers"][0]["rank"] == 1 - rank
            told = report.options or {}
            assert (told["codec"], told["metrics_port"]) == ("int8", str(ports[rank]))

        ranks.init()  # once more in the same processes
        ranks.run(_reduce, 1)
        assert _scrape(ports[0])["geocomm_operations_total"][0] == 4
        ranks.destroy()


def test_taken_port_leaves_the_job_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with Ranks(["rome", "berlin"], environment_of={0: {"GEOCOMM_METRICS_PORT": port}}) as ranks:
            ranks.init()
            assert ranks.run(_reduce, 2) == [4.0, 4.0]
            ranks.destroy()

            def told(rank: int) -> list[str]:
                return [line for line in ranks.output(rank).splitlines() if "geocomm warning" in line and port in line]

            _wait_until(lambda: bool(told(0)))  # a thread of the native log writes it
            assert [len(told(rank)) for rank in (0, 1)] == [1, 0]


def test_missing_package_ends_the_start_on_all_ranks() -> None:
    with Ranks(["rome", "berlin"], environment_of={1: {"GEOCOMM_METRICS_PORT": "9400"}}) as ranks:
        ranks.run(_hide_prometheus_client)
        here, there = ranks.try_init()
        assert install_command("metrics") in there.require("UnsupportedError").message
        assert install_command("metrics") in here.require("InvalidArgumentError").message


def test_events_tell_of_policy_epochs_and_of_a_lost_peer() -> None:
    with Ranks(["rome", "berlin"], environment={"GEOCOMM_LINK_DEADLINE": "60"}) as ranks:
        ranks.init()
        ranks.run(_reduce, 1)
        ranks.run(_refresh)
        ranks.begin(_reduce, 1, ranks=[0])
        ranks.signal(1, signal.SIGKILL)
        (outcome,) = ranks.finish(ranks=[0])
        failure = outcome.require("PeerLostError")
        (epochs,) = ranks.outcomes(_events, "policy_epoch", ranks=[0])
        (failed,) = ranks.outcomes(_events, "operation_failed", ranks=[0])
        ranks.outcomes(dist.destroy_process_group, ranks=[0])
    first, second = epochs.value
    assert (first["epoch"], first["links"], second["epoch"], second["links"]) == (0, "assumed", 1, "measured")
    assert (first["ranks"], first["sites"]) == (2, ["rome", "berlin"])
    lost = failed.value
    assert [(line["site"], line["rank"]) for line in lost] == [("rome", 0)] * len(lost)
    assert lost[0]["code"] == "PeerLost"
    assert lost[0]["message"] in failure.message


PROGRAM = """
import os
import pathlib
import socket
import time
os.environ["GEOCOMM_SITE"] = "site" + os.environ["RANK"]
import torch
import torch.distributed as dist

from geocomm.core.run_dir import RunDir

dist.init_process_group("geocomm")
dist.all_reduce(torch.ones(1000))
dist.barrier()
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as collector:
    while collector.connect_ex(str(RunDir(pathlib.Path("telemetry")).rank_socket)) != 0:
        time.sleep(0.05)
"""


def test_program_that_never_destroys_its_group_sends_a_last_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEOCOMM_TELEMETRY", str(tmp_path / "telemetry"))
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [*warm_ranks().command("torch.distributed.run"), "--standalone", "--nproc-per-node", "2", "program.py"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path, check=False)
    assert ended.returncode == 0, ended.stderr

    def last_of_rank_0() -> Report | None:  # which keeps the collector
        with contextlib.closing(RunStore(tmp_path / "telemetry")) as store:
            return next((said.report for said in store.latest() if said.report.rank == 0 and said.report.final), None)

    _wait_until(lambda: last_of_rank_0() is not None)
    assert (last := last_of_rank_0()) is not None
    assert last.stats["operations"] >= 1
    assert len(last.stats["peers"]) == 1
