"""At the node of the hub: prints what the run store says of each site, one JSON line every two seconds, until nobody
reads.

python -m geocomm.cli.ssh_sites.steps FOLDER NODE
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import time
from pathlib import Path

from geocomm.core.run_dir import RunDir
from geocomm.observe.telemetry.overview import moment, overview
from geocomm.observe.telemetry.run_store import NoStoreError, RunStore

_EVERY_S = 2.0


def main(folder: Path, node: str) -> None:
    """Print lines until the reader is gone."""
    began = time.time()
    with contextlib.suppress(BrokenPipeError):
        while True:
            print(json.dumps(_steps(folder, node, began)), flush=True)
            time.sleep(_EVERY_S)


def _steps(folder: Path, node: str, since: float) -> dict[str, str]:
    stores = [folder / "run", folder / f"node-{node}.telemetry"]
    there = [store for store in stores if RunDir(store).telemetry.exists()]
    with contextlib.suppress(NoStoreError, OSError, sqlite3.Error):  # it is being made, or busy: the next time
        if there:
            newest = max(there, key=lambda store: RunDir(store).telemetry.stat().st_mtime)
            with contextlib.closing(RunStore(newest)) as store:
                seen = overview(store, moment(store, time.time()), since - 60)
                told = {site.name: _told(site.step, site.step_seconds, site.loss) for site in seen.sites}
                return {name: text for name, text in told.items() if text}
    return {}


def _told(step: int | None, seconds: float | None, loss: float | None) -> str:
    parts = [
        "" if step is None else f"step {step}",
        "" if seconds is None else f"{seconds:.3g} s/step",
        "" if loss is None else f"loss {loss:.4f}",
    ]
    return ", ".join(filter(None, parts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
