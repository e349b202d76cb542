"""The page in a browser: what it draws, of whatever names there are, and that a file of it needs nothing else."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
import urllib.request
import zlib
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from chromium import Page

from support.recorded_run import record
from support.warm_executable import warm_executable

pytestmark = pytest.mark.timeout(120)
CURVES = 9
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def report(sites: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run of so many sites, as a file."""
    folder = tmp_path_factory.mktemp("run")
    record(folder / "telemetry", sites, 1, time.time() - 60, 60, host=EVIL)
    file = folder / "report.html"
    subprocess.run(
        [warm_executable(), "-m", "geocomm", "dashboard", folder / "telemetry", "--export", file], check=True
    )
    return file


def open_file(page: Page, report: Path) -> None:
    page.open(report.as_uri())
    assert page.wait_for(f'document.querySelectorAll("canvas").length === {CURVES}', 20)
    assert page.evaluate('performance.getEntriesByType("resource").map((one) => one.name)') == []


@pytest.mark.parametrize("sites", [2, 16], scope="module")
def test_file_of_the_page_draws_all_sites_by_itself_and_no_name_becomes_markup(
    page: Page, report: Path, sites: int
) -> None:
    assert report.stat().st_size < 2_000_000
    open_file(page, report)
    document = page.evaluate("document.documentElement.outerHTML")
    assert "training" in document
    assert f"<td>{EVIL.replace('<', '&lt;').replace('>', '&gt;')}</td>" in document  # a machine's name, in the table
    assert "<img" not in document
    if sites == 2:
        assert "4 of" not in document
        assert document.count('class="node') == 2
        assert "→ virginia: " in document
    else:
        assert document.count('<td title="') == sites * (sites - 1)
    assert page.problems == []


FAULTS = """(() => {
  const named = (one) => (one.getAttribute("aria-label") || one.textContent || "").trim() ||
    document.getElementById(one.getAttribute("aria-labelledby"))?.textContent;
  const faults = [];
  for (const one of document.querySelectorAll("button, summary, section, [tabindex], [role=img], [role=group]"))
    if (!one.hidden && !named(one)) faults.push("no name: " + one.outerHTML.slice(0, 80));
  for (const one of document.querySelectorAll("th"))
    if (!one.closest("[role=img]") && (!one.scope || !named(one))) faults.push("no head: " + one.outerHTML);
  for (const one of document.querySelectorAll(".scroll"))
    if (one.scrollHeight > one.clientHeight && one.tabIndex !== 0) faults.push("no way there by keys: " + one.id);
  if (document.documentElement.scrollWidth > innerWidth) faults.push("wider than the window");
  return faults;
})()"""


@pytest.mark.parametrize("sites", [2, 16], scope="module")
def test_page_names_its_parts_and_fits_a_phone(page: Page, report: Path) -> None:
    for width in (1440, 390):
        page.resize(width, 900)
        open_file(page, report)
        assert page.evaluate(FAULTS) == []
        assert page.problems == []


def test_page_is_served_until_ctrl_c_and_its_stream_goes_on(tmp_path: Path) -> None:
    folder = record(tmp_path / "telemetry", 2, 1, time.time() - 20, 20)
    command = [warm_executable(), "-m", "geocomm", "dashboard", folder, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, contextlib.ExitStack() as cleanup:
        cleanup.callback(process.kill)
        assert process.stdout is not None
        address = process.stdout.readline().split()[0]
        with urllib.request.urlopen(f"{address}api/stream", timeout=60) as stream:
            lines = [line for line in (stream.readline() for _ in range(4)) if line.startswith(b"data: {")]
        assert len(lines) == 2
        whole, changed = (json.loads(line.removeprefix(b"data: ")) for line in lines)
        assert whole.keys() >= {"sites", "links", "steps", "options"}
        assert "sites" in changed  # they were heard longer ago
        assert "options" not in changed
        asked = urllib.request.Request(f"{address}api/stream", headers={"accept-encoding": "gzip"})
        with urllib.request.urlopen(asked, timeout=60) as stream:
            unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
            text = b""
            while text.count(b"\n\n") < 2:
                text += unpacker.decompress(stream.read1())
        assert text.startswith(b"data: {")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT


def test_folder_without_telemetry_is_refused_in_words(tmp_path: Path) -> None:
    done = subprocess.run(
        [warm_executable(), "-m", "geocomm", "dashboard", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "has no telemetry" in " ".join(done.stderr.split())
