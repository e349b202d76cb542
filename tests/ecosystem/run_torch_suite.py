"""Runs PyTorch's own distributed tests over Gloo and over sites, and tells where they differ.

    python tests/ecosystem/run_torch_suite.py --seconds 150 --report benchmarks/results/ecosystem.md

Resumable: results are kept per layout (`--folder`, build/torch-suite by default), and another call runs only the tests
that have none. `--again` first forgets those that failed. A layout is "gloo:RANKS" or the sizes of the sites: "2+1".
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
LAYOUTS = ("gloo:2", "1+1", "2", "gloo:3", "2+1", "1+1+1", "gloo:4", "2+2", "3+1")
SECONDS_PER_TEST = 120

Records = dict[str, dict[str, Any]]


def sites_of(layout: str) -> list[str]:
    """The site of each rank; none for Gloo."""
    if layout.startswith("gloo:"):
        return []
    return [site for site, size in zip("abcdefgh", layout.split("+"), strict=False) for _ in range(int(size))]


def ranks_of(layout: str) -> int:
    return len(sites_of(layout)) or int(layout.removeprefix("gloo:"))


def read(folder: Path, layout: str) -> Records:
    path = folder / f"{layout}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write(folder: Path, layout: str, records: Records) -> None:
    fresh = folder / f"{layout}.json.new"
    fresh.write_text(json.dumps(records, indent=1, sort_keys=True))
    fresh.replace(folder / f"{layout}.json")


def commit() -> str:
    command = ["git", "-C", str(REPOSITORY), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def run_layout(layout: str, folder: Path, seconds: float, only: list[str], again: bool) -> int:
    """A process with the layout's environment runs what has no result yet; its output is in a log. Its exit code."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GEOCOMM_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(HERE), str(REPOSITORY)]),
        "SUITE_SITES": ",".join(sites_of(layout)),
        "WORLD_SIZE": str(ranks_of(layout)),
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(SECONDS_PER_TEST),
        "OMP_NUM_THREADS": "1",
        "GEOCOMM_THREADS": "1",
        "GEOCOMM_SECURITY": "insecure",  # loopback only; tests turn on TORCH_DISTRIBUTED_DEBUG=DETAIL
    }
    command = [sys.executable, str(Path(__file__).resolve()), "--run", layout, "--folder", str(folder.resolve())]
    command += ["--seconds", str(seconds), *(["--again"] if again else []), *only]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{layout}.log").open("a") as log:
        return subprocess.run(command, env=environment, stdout=log, stderr=log, check=False).returncode


def run_here(layout: str, folder: Path, seconds: float, only: list[str], again: bool) -> None:
    import multiprocessing

    multiprocessing.set_start_method("forkserver")
    multiprocessing.set_forkserver_preload(["torch_suite_cases"])
    from torch_suite_cases import TorchSuite

    until = time.monotonic() + seconds
    records = read(folder, layout)
    if again:
        records = {name: record for name, record in records.items() if record["outcome"] != "failed"}
    TorchSuite.setUpClass()
    for name in only or unittest.TestLoader().getTestCaseNames(TorchSuite):
        if name in records:
            continue
        if time.monotonic() > until:
            break
        records[name] = run_test(TorchSuite(name))
        write(folder, layout, records)


def run_test(test: unittest.TestCase) -> dict[str, Any]:
    result = unittest.TestResult()
    began = time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):
        test.run(result)
    record: dict[str, Any] = {"seconds": round(time.monotonic() - began, 1), "commit": commit()}
    bad = [text for _, text in result.failures + result.errors]
    if bad:
        return record | {"outcome": "failed", "reason": "\n".join(bad)}
    if result.skipped:
        return record | {"outcome": "skipped", "reason": result.skipped[0][1]}
    return record | {"outcome": "passed", "reason": ""}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", help="names of tests; default: all")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="by commas; default: %(default)s")
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "build/torch-suite", help="where results are kept")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no test after so many; default: no limit")
    parser.add_argument("--again", action="store_true", help="run what failed once more")
    parser.add_argument("--report", type=Path, help="write a table of all results to this file")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run_here(given.run, given.folder, given.seconds, given.tests, given.again)
        return 0
    until = time.monotonic() + given.seconds
    layouts = given.layouts.split(",")
    for layout in layouts:
        left = until - time.monotonic()
        if left > 0 and run_layout(layout, given.folder, left, given.tests, given.again):
            print(f"{layout}: the run itself failed: {given.folder}/{layout}.log")
            return 2
    from torch_suite_report import differences, report, summary

    results = {layout: read(given.folder, layout) for layout in layouts}
    print("\n".join(summary(results)))
    if given.report:
        given.report.write_text(report(results))
    return 1 if differences(results).failures else 0


if __name__ == "__main__":
    sys.exit(main())
