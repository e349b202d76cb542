"""What agents and collectors count of their own work: each has a file in its folder, which `/metrics` reads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

COUNTERS = {
    "collector_reports_kept": "reports that the run store's collector has kept since it started",
    "collector_reports_refused": "reports that the run store's collector has refused since it started",
    "collector_reports_dropped": "reports that the run store's collector could not keep or pass on since it started",
    "agent_connections": "connections of the site's agent to the leader; each after the first is a reconnection",
    "leader_entries": "journal entries that the site's agent has committed as the leader",
    "leader_commit_seconds": "seconds in which the site's agent committed journal entries, also to etcd",
    "leader_frames_left_out": "frames that the site's agent, as the leader, let no round take: far longer than usual",
    "data_repeated_tokens": "tokens that sites had read and read again after a failure, since the site's agent leads",
}
"""Name without `geocomm_` and `_total`, and help."""
_EVERY_S = 5.0


async def keep_counters(folder: Path, process: str, read: Callable[[], Mapping[str, float]]) -> None:
    """Write what a process counts to its file in `folder`, until cancelled."""
    path = folder / f"counters-{process}.json"
    while True:
        with contextlib.suppress(OSError):  # a full disk: the next time
            # Not write_whole, which waits for the disk: a number that is lost costs nothing.
            path.with_suffix(".part").write_text(json.dumps(read()))
            os.replace(path.with_suffix(".part"), path)
        await asyncio.sleep(_EVERY_S)


def counters_in(folder: Path) -> dict[str, float]:
    """What the processes of a folder wrote last, by name."""
    found: dict[str, float] = {}
    for path in folder.glob("counters-*.json"):
        with contextlib.suppress(OSError, ValueError):
            found |= json.loads(path.read_text())
    return found
