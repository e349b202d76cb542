"""Whether a healthy run raises an alert: `python benchmarks/bench_alerts.py [--minutes 30] [--sites 2]`.

Sites over the emulated WAN with TLS, 200 Mbit/s, 300 ms and 0.1 % loss, reduce 384 KiB twice a step, as
`bench_why_worker.py` does. Their keys last for 30 days, so that no certificate is about to end. It prints a section of
benchmarks/results/single-measurements.md: what fired, and what `geocomm why` says. Exit status 1: an alert fired, or
the run failed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from pathlib import Path

from bench_why import RunError, judged, train

from geocomm.lab.bench.bench_report import Conditions, load_at_end
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.observe.alerts import alert_log
from geocomm.observe.telemetry.run_store import RunStore

LINK = EmulatedLink(200e6, 0.15, 0.001)
STEP_S = 1.0
"""About what a step takes here: a program has to say how many it makes."""


def main() -> int:
    """Run, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--sites", type=int, default=2)
    arguments = parser.parse_args()
    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        settings = {"WHY_STEPS": str(round(60 * arguments.minutes / STEP_S)), "WHY_KIB": "384", "WHY_COMPUTE": "0.2"}
        limit_s = 120 * arguments.minutes + 300
        try:
            train(EmulatedWan.uniform(arguments.sites, LINK), store, settings, limit_s=limit_s)
        except RunError as error:
            raise SystemExit(f"the run failed: {error}") from None
        first, last = RunStore(store).span() or (0.0, 0.0)
        told = store / alert_log.FILE_NAME
        lines = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
        fired = [line for line in lines if line["status"] == "firing"]
        said = judged(store)
    print("## Alerts of a healthy run\n")
    for line in conditions.lines():
        print(line)
    print(load_at_end())
    alerts = ", ".join(f"{line['alert']} {line['labels']} after {line['time'] - first:.0f} s" for line in fired)
    print(f"\nReports of {(last - first) / 60:.1f} minutes, steps of {said.step_seconds:.2f} s: {len(fired)} alerts")
    print(f"({alerts or 'none'}). `geocomm why`: {said.verdict.cause}.")
    return 1 if fired else 0


if __name__ == "__main__":
    sys.exit(main())
