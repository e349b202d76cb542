"""What agents and collectors count of their own work: each has a file in its folder, which `/metrics` reads.

`observe.telemetry.run_numbers` declares them (`StoreNumbers`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from geocomm.core.run_dir import RunDir

_EVERY_S = 5.0


async def keep_counters(folder: Path, process: str, read: Callable[[], Mapping[str, float]]) -> None:
    """Write what a process counts to its file in `folder`, until cancelled."""
    path = RunDir(folder).counters(process)
    while True:
        with contextlib.suppress(OSError):  # a full disk: the next time
            # Not write_whole, which waits for the disk: a number that is lost costs nothing.
            path.with_suffix(".part").write_text(json.dumps(read()))
            os.replace(path.with_suffix(".part"), path)
        await asyncio.sleep(_EVERY_S)


def counters_in(folder: Path) -> dict[str, float]:
    """What the processes of a folder wrote last, by name."""
    found: dict[str, float] = {}
    for path in RunDir(folder).all_counters():
        with contextlib.suppress(OSError, ValueError):
            found |= json.loads(path.read_text())
    return found
