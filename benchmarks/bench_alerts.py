"""Whether a healthy run raises an alert: `python benchmarks/bench_alerts.py [--minutes 30] [--sites 2]`.

Sites over the emulated WAN with TLS, 200 Mbit/s, 300 ms and 0.1 % loss, reduce 384 KiB twice a step, as
`bench_why_worker.py` does. Their keys last for 30 days, so that no certificate is about to end. It prints a section of
benchmarks/results/single-measurements.md: what fired, and what `geocomm why` says. Exit status 1: an alert fired, or
the run failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from geocomm.bench.bench_report import Conditions
from geocomm.emulator.emulated_keys import site_environment, site_keys
from geocomm.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.emulator.emulated_wan import WanRun
from geocomm.telemetry import alert_log
from geocomm.telemetry.run_store import RunStore

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "benchmarks" / "bench_why_worker.py"
LINK = EmulatedLink(200e6, 0.15, 0.001)
STEP_S = 1.0
"""About what a step takes here: a program has to say how many it makes."""


def run(sites: int, minutes: float, store: Path) -> None:
    """Train for so long, with telemetry to `store`. Raises SystemExit if that fails."""
    topology = EmulatedWan.uniform(sites, LINK)
    with site_keys(topology.sites, None, secure=True) as keys, tempfile.TemporaryFile("w+") as log:
        command = (
            f"{sys.executable} -m geocomm run --hub $MASTER_ADDR:$MASTER_PORT --telemetry {store} -- "
            f"--nnodes $NNODES --node-rank $NODE_RANK --nproc-per-node 1 {WORKER}"
        )
        settings = {"STEPS": str(round(60 * minutes / STEP_S)), "KIB": "384", "COMPUTE": "0.2"}
        environment = {
            **site_environment(os.environ, keys),
            "PYTHONPATH": str(ROOT),
            **{f"WHY_{name}": value for name, value in settings.items()},
        }
        with WanRun(
            topology, ["/bin/sh", "-c", command], stdout=log, stderr=log, environment=environment, keys=keys
        ) as wan:
            status = wan.wait(120 * minutes + 300)
        if status != 0:
            log.seek(0)
            raise SystemExit(f"the run ended with {status}:\n{log.read()[-6000:]}")


def main() -> int:
    """Run, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--sites", type=int, default=2)
    arguments = parser.parse_args()
    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        run(arguments.sites, arguments.minutes, store)
        first, last = RunStore(store).span() or (0.0, 0.0)
        told = store / alert_log.FILE_NAME
        lines = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
        fired = [line for line in lines if line["status"] == "firing"]
        command = [sys.executable, "-m", "geocomm", "why", store, "--json"]
        said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    print("## Alerts of a healthy run\n")
    for line in conditions.lines():
        print(line)
    print(f"- load averages at the end: {' '.join(f'{load:.1f}' for load in os.getloadavg())}")
    alerts = ", ".join(f"{line['alert']} {line['labels']} after {line['time'] - first:.0f} s" for line in fired)
    print(f"\nReports of {(last - first) / 60:.1f} minutes, steps of {said['step_seconds']:.2f} s: {len(fired)} alerts")
    print(f"({alerts or 'none'}). `geocomm why`: {said['verdicts'][0]['cause']}.")
    return 1 if fired else 0


if __name__ == "__main__":
    sys.exit(main())
