"""The page of a run as a server gives it: who may look, what they get, and that nothing of it comes from elsewhere."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("starlette")
from starlette.testclient import TestClient

from geocomm.core.run_dir import RunDir
from geocomm.observe.dashboard.app import STATIC, dashboard_app
from support.recorded_run import record

UPLOT = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("run") / "telemetry", 3, 2, time.time() - 40, 40)


def client(run: Path, token: str | None = None, host: str = "127.0.0.1") -> TestClient:
    return TestClient(dashboard_app(run, token, frozenset({"127.0.0.1"})), base_url=f"http://{host}:8420")


def test_page_and_its_files_come_from_here_alone(run: Path) -> None:
    with client(run) as browser:
        page = browser.get("/")
        assert page.headers["content-security-policy"].startswith("default-src 'self';")
        files = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert len([name for name in files if name.startswith("static/")]) == len(files) - 1  # one is no icon: data:,
        for name in files[1:]:
            assert browser.get(f"/{name}").status_code == 200, name
        own = [path for path in STATIC.glob("*") if path.suffix in (".js", ".css", ".html")]
        assert not [path for path in own if re.search(r"https?://(?!www\.w3\.org)", path.read_text("utf-8"))]


def test_uplot_is_the_released_file_and_has_its_licence() -> None:
    folder = STATIC / "uplot-1.6.32"
    assert {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in UPLOT} == UPLOT
    assert "MIT" in (folder / "LICENSE").read_text()


def test_page_is_light(run: Path) -> None:
    with client(run) as browser:
        files = re.findall(r'(?:src|href)="(static/[^"]+)"', browser.get("/").text)
        parts = [browser.get("/").content, *(browser.get(f"/{name}").content for name in files)]
    assert sum(len(gzip.compress(part)) for part in parts) <= 120_000


def test_state_and_curves_have_every_site_and_both_ways_of_each_pair(run: Path) -> None:
    with client(run) as browser:
        state = browser.get("/api/run").json()
        names = ["frankfurt", "tokyo", "virginia"]
        assert [site["name"] for site in state["sites"]] == names
        assert {(link["source"], link["target"]) for link in state["links"]} == {
            (a, b) for a in names for b in names if a != b
        }
        assert state["step"] == 19
        assert state["options"] == [
            {"name": "codec", "default": "none", "values": {"int8": names}},
            {"name": "streams", "default": "", "values": {"": ["frankfurt"], "4": ["tokyo", "virginia"]}},
        ]
        assert [step["step"] for step in state["steps"]["tokyo"]] == list(range(1, 20))
        series = browser.get("/api/curves?seconds=600").json()
        assert set(series["sites"]) == set(names)
        lengths = {len(one) for group in ("sites", "links") for row in series[group].values() for one in row.values()}
        assert lengths == {len(series["times"])}
        assert all(1e8 < rate * 8 < 4e8 for rate in series["links"]["tokyo > virginia"]["bytes_per_second"][2:])
        assert browser.get("/api/curves?seconds=x").status_code == 400


def test_part_of_the_time_has_its_curves_and_its_last_steps(run: Path) -> None:
    with client(run) as browser:
        whole = browser.get("/api/curves?seconds=0").json()["times"]
        first, last = whole[10], whole[20]
        part = browser.get(f"/api/part?since={first}&until={last}").json()
        assert part["times"] == whole[10:20]  # what came at the end itself is later
        assert set(part["sites"]) == set(part["steps"]) == {"frankfurt", "tokyo", "virginia"}
        assert all(first <= step["at"] <= last for step in part["steps"]["tokyo"])
        assert [step["step"] for step in part["steps"]["tokyo"]] == [5, 6, 7, 8, 9]
        assert browser.get("/api/part?since=-inf&until=inf").json()["times"] == whole
        assert browser.get(f"/api/part?since={last + 1e6}&until={last + 2e6}").json()["times"] == []
        for asked in ("", "since=1", "since=x&until=2", "since=nan&until=2", "since=2&until=1"):
            assert browser.get(f"/api/part?{asked}").status_code == 400, asked


def test_metrics_of_all_sites_are_what_prometheus_reads(tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    run = record(tmp_path / "telemetry", 3, 2, time.time() - 40, 40)  # what is older than a minute is not among them
    with client(run) as browser:
        text = browser.get("/metrics").text
    samples = {
        (s.name, *sorted(s.labels.values())): s.value
        for f in parser.text_string_to_metric_families(text)
        for s in f.samples
    }
    assert samples["geocomm_train_step", "tokyo"] == 19
    assert samples["geocomm_site_ranks_reporting", "virginia"] == 2
    assert samples["geocomm_bottleneck_seconds", "", "input"] == pytest.approx(0.16, abs=0.05)
    assert samples["geocomm_site_link_least_rtt_seconds", "frankfurt", "virginia"] == 0.029
    assert samples["geocomm_site_link_outages_total", "tokyo", "virginia"] == 2


def test_metrics_behind_numbers_of_the_page_are_there(run: Path) -> None:
    pytest.importorskip("prometheus_client")
    kinds = "heard|site|link|store|leader|member"
    texts = re.findall(rf'"((?:(?:{kinds})\.\w+(?:, )?)+)"', (STATIC / "app.js").read_text())
    named = {name for text in texts for name in text.split(", ")}
    with client(run) as browser:
        metrics, text = browser.get("/api/run").json()["metrics"], browser.get("/metrics").text
    assert len(named) > 10
    assert named <= set(metrics)
    assert not [name for name in metrics.values() if f"# TYPE {name} " not in text]


def test_metrics_leave_out_what_reported_to_an_earlier_collector_alone(tmp_path: Path) -> None:
    folder = record(tmp_path / "telemetry", 2, 1, time.time() - 40, 40)
    with client(folder) as browser:
        assert "geocomm_site_report_age_seconds{" in browser.get("/metrics").text
        RunDir(folder).collector_lock.touch()
        assert "geocomm_site_report_age_seconds{" not in browser.get("/metrics").text


def test_who_asks_by_another_name_or_would_change_something_is_refused(run: Path) -> None:
    with client(run, host="evil.example") as browser:
        assert browser.get("/api/run").status_code == 421
    with client(run) as browser:
        assert browser.post("/api/run").status_code == 405
        assert browser.get("/static/../app.py").status_code == 404
        assert browser.get("/static/%2e%2e/app.py").status_code == 404


def test_with_a_token_nothing_is_seen_without_it(run: Path) -> None:
    with client(run, token="secret") as browser:
        for path in ("/", "/api/run", "/api/stream", "/metrics", "/static/app.js", "/?token=guess"):
            assert browser.get(path).status_code == 401, path
        assert browser.get("/metrics", headers={"authorization": "Bearer secret"}).status_code == 200
        first = browser.get("/?token=secret", follow_redirects=False)
        assert (first.status_code, first.headers["location"]) == (303, "/")
        assert "HttpOnly" in first.headers["set-cookie"]
        assert browser.get("/api/run").status_code == 200


def test_token_stands_for_the_name_by_which_the_page_is_asked_for(run: Path) -> None:
    with client(run, token="secret", host="192.0.2.7") as browser:  # a machine has names that it does not know
        assert browser.get("/api/run").status_code == 401
        assert browser.get("/api/run", headers={"authorization": "Bearer secret"}).status_code == 200


@pytest.mark.parametrize("token", ["a&b=c;d", "+%/?#", '"quoted"'])
def test_token_of_any_signs_comes_back_as_a_cookie(run: Path, token: str) -> None:
    with client(run, token=token) as browser:
        assert browser.get(f"/?token={quote(token)}").status_code == 200
        assert browser.get("/api/run").status_code == 200


def test_empty_token_is_no_token(run: Path) -> None:
    with pytest.raises(ValueError, match="empty"):
        dashboard_app(run, "", frozenset())


def test_viewers_are_counted_before_they_are_let_in_and_until_they_are_gone(run: Path) -> None:
    app = dashboard_app(run, None, frozenset({"here"}))

    async def look(statuses: list[int], leave: asyncio.Event) -> None:
        async def receive() -> dict[str, object]:
            await leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/stream",
            "query_string": b"",
            "headers": [(b"host", b"here")],
        }
        await app(scope, receive, send)

    async def many() -> list[list[int]]:
        seen: list[list[int]] = []
        for gone_at_once in (True, False, False):
            statuses: list[int] = []
            leave = asyncio.Event()
            if gone_at_once:
                leave.set()
            viewers = [asyncio.create_task(look(statuses, leave)) for _ in range(40)]
            async with asyncio.timeout(60):
                while len(statuses) < 40:
                    await asyncio.sleep(0.01)
                leave.set()
                await asyncio.gather(*viewers)
            seen.append(sorted(statuses))
        return seen

    assert asyncio.run(many())[1:] == [[200] * 32 + [503] * 8] * 2
