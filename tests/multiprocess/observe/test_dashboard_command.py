"""`geocomm dashboard` beyond this machine: the address that it prints works there, and nothing is seen without it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from support.local_jobs import environment
from support.recorded_run import record
from support.warm_executable import warm_executable


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("run") / "telemetry", 2, 1, time.time() - 20, 20)


@pytest.fixture
def printed(run: Path) -> Iterator[str]:
    """The address of the page that listens everywhere."""
    command = [warm_executable(), "-m", "geocomm", "dashboard", str(run), "--port", "0", "--address", "0.0.0.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[0]
        finally:
            process.kill()


def status(address: str, **headers: str) -> int:
    try:
        with urlopen(Request(address, headers=headers), timeout=30) as answer:
            return answer.status
    except HTTPError as error:
        return error.code


def test_printed_address_is_one_that_others_reach_and_shows_the_run_by_any_name(printed: str) -> None:
    parts = urlsplit(printed)
    assert parts.hostname != "0.0.0.0"
    browser = build_opener(HTTPCookieProcessor())
    assert browser.open(printed, timeout=30).status == 200
    page = f"http://{parts.netloc}"
    assert browser.open(f"{page}/api/run", timeout=30).status == 200
    for path in ("/", "/api/run", "/metrics", "/?token=", "/?token=guess"):
        assert status(page + path) == 401, path
        assert status(page + path, Host="train.example") == 401, path
    token = parts.query.removeprefix("token=")
    assert status(f"{page}/metrics", Host="train.example", Authorization=f"Bearer {token}") == 200


@pytest.mark.parametrize("token", ["", " ", "two words", "Schlüssel"])
def test_token_that_would_let_everybody_in_or_nobody_is_refused(run: Path, token: str) -> None:
    command = [warm_executable(), "-m", "geocomm", "dashboard", str(run), "--port", "0", "--token", token]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert ended.returncode == 2, ended
    assert "--token: one word" in ended.stderr
    assert "http" not in ended.stdout
