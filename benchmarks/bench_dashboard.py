"""How the page of a run copes with a day of 16 sites: `PYTHONPATH=tests:tools python benchmarks/bench_dashboard.py`.

The store has what its rules leave of a day at one report a second of each rank: all of the last hour, one in ten
seconds of the rest; --dense and --every make it smaller. The ranks report on while the page is looked at. Measured:
what the server needs, what it sends, and in a headless Chromium (Debian: apt install chromium) the first paint and how
evenly the page scrolls. It writes benchmarks/results/dashboard.md. Ten minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chromium import NAMES, Chromium, Page, chromium_path

from geocomm.core.run_dir import RunDir
from geocomm.lab.bench.bench_report import Conditions
from support.recorded_run import record

ROOT = Path(__file__).resolve().parents[1]
DAY_S = 86400
WINDOWS_S = (600, 3600, DAY_S)
SCROLL_S = 10
PAINTS = 5
_PAINT = 'performance.getEntriesByType("paint").find((one) => one.name === "first-contentful-paint")?.startTime'
_SCROLL = """(() => {
  window.frames_ms = [];
  const height = document.documentElement.scrollHeight - innerHeight, began = performance.now();
  let last = began;
  const step = (now) => {
    frames_ms.push(now - last); last = now;
    scrollTo(0, height * (0.5 - 0.5 * Math.cos((now - began) / 1000)));
    if (now - began < SECONDS * 1000) requestAnimationFrame(step); else window.scrolled = true;
  };
  requestAnimationFrame(step);
})()""".replace("SECONDS", str(SCROLL_S))


class Run:
    """A run that goes on."""

    def __init__(self, folder: Path, sites: int) -> None:
        self.folder, self._sites = folder, sites
        self._begin = time.time() - DAY_S
        self._told = 0
        self._ended = threading.Event()

    def write_day(self, dense_s: int, every_s: int) -> None:
        """What is there of the day before: all of its last `dense_s`, and one in `every_s` of the rest."""
        self._write([*range(0, DAY_S - dense_s, every_s), *range(DAY_S - dense_s, DAY_S)])
        self._go_on()

    def _write(self, seconds: list[int]) -> None:
        record(self.folder, self._sites, 1, self._begin, seconds)
        self._told = seconds[-1] + 1

    def _go_on(self) -> None:
        if news := list(range(self._told, int(time.time() - self._begin) + 1)):
            self._write(news)

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Reports come once a second."""

        def tell() -> None:
            while not self._ended.wait(1.0):
                self._go_on()

        teller = threading.Thread(target=tell)
        teller.start()
        try:
            yield
        finally:
            self._ended.set()
            teller.join()


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of the page."""
    command = [sys.executable, "-m", "geocomm", "dashboard", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[0]
        finally:
            process.kill()


def answer(url: str) -> tuple[float, bytes]:
    """Seconds until it was there, and its content."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=300) as response:
        content = response.read()
    return time.perf_counter() - began, content


def answers(address: str) -> Iterator[str]:
    """Rows of what the server sends: the first time, and the median of later ones."""
    kinds = {"state": "api/run"} | {f"curves, {seconds} s": f"api/curves?seconds={seconds}" for seconds in WINDOWS_S}
    for name, path in kinds.items():
        first, content = answer(address + path)
        later = []
        for _ in range(5):
            time.sleep(1.5)
            took, content = answer(address + path)
            later.append(took)
        packed = len(gzip.compress(content, 6))
        yield (
            f"| {name} | {first * 1e3:.0f} ms | {statistics.median(later) * 1e3:.0f} ms | {len(content) / 1e3:.0f} kB "
            f"| {packed / 1e3:.0f} kB |"
        )


def looked_at(page: Page, address: str) -> dict[str, Any]:
    """What a browser makes of it."""
    page.resize(1440, 900)
    paints = []
    for _ in range(PAINTS):
        page.open(address)
        assert page.wait_for(f"{_PAINT} > 0", 30)
        paints.append(page.evaluate(_PAINT))
    assert page.wait_for('document.querySelectorAll("canvas").length === 9', 60)
    page.evaluate(
        '[...document.querySelectorAll("#windows button")].find((one) => one.textContent === "1 day").click()'
    )
    time.sleep(10)  # the first time takes long
    page.evaluate(_SCROLL)
    assert page.wait_for("window.scrolled === true", 60)
    assert page.problems == []
    return {"paints": paints, "frames": sorted(page.evaluate("frames_ms"))}


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=16)
    parser.add_argument("--dense", type=int, default=3600, help="seconds of which there are all reports")
    parser.add_argument("--every", type=int, default=10, help="seconds between reports of the rest")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    arguments = parser.parse_args()
    path = chromium_path()
    if path is None:
        raise SystemExit(f"bench_dashboard: this machine has none of {', '.join(NAMES)}")
    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    with tempfile.TemporaryDirectory(prefix="bench-dashboard-") as work:
        run = Run(Path(work) / "telemetry", arguments.sites)
        run.write_day(arguments.dense, arguments.every)
        size = RunDir(run.folder).telemetry.stat().st_size
        with run.going_on(), served(run.folder) as address:
            rows = list(answers(address))
            with Chromium(path, served=address) as browser:
                seen = looked_at(browser.page(), address)
            state = json.loads(answer(address + "api/run")[1])
            assert all(site["life"] == "reporting" for site in state["sites"])
    frames: list[float] = seen["frames"]
    lines = [
        f"# The page of a run: a day of {arguments.sites} sites",
        "",
        *conditions.lines(),
        f"- The store, {size / 1e6:.0f} MB: all of {arguments.dense} s, one report in {arguments.every} s of the rest.",
        "- Reports came on once a second. No GPU drew.",
        "",
        "| answer | first | later | size | with gzip |",
        "|---|---:|---:|---:|---:|",
        *rows,
        "",
        f"First paint at 1440 x 900: {statistics.median(seen['paints']):.0f} ms in the median of {PAINTS}, "
        f"{max(seen['paints']):.0f} ms at most.",
        "",
        f"Scrolling for {SCROLL_S} s with the curves of a day: {1000 * len(frames) / sum(frames):.0f} frames a second "
        f"in the mean; 99 % of the frames came within {frames[int(0.99 * len(frames))]:.0f} ms, the last within "
        f"{frames[-1]:.0f} ms.",
        "",
    ]
    text = "\n".join(lines)
    (arguments.out / "dashboard.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
