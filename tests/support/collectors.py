"""Collectors of telemetry for ranks of several sites on one machine, with one run store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from geocomm.core.loop_in_thread import in_a_loop
from geocomm.core.run_dir import RunDir
from geocomm.observe.telemetry.collector import Collector
from geocomm.observe.telemetry.run_store import RunStore


@contextlib.contextmanager
def collecting(folder: Path, sites: Sequence[str]) -> Iterator[dict[int, dict[str, str]]]:
    """Keep in `folder` what ranks report. Yields the environment of each rank; `sites` are theirs."""
    store = RunStore(folder, write=True)
    folders = {site: folder / site for site in sites}

    async def serve() -> None:
        async with asyncio.TaskGroup() as serving:
            for site, at in folders.items():
                serving.create_task(Collector(at, site, store, None, lambda: None, print).serve())

    with contextlib.closing(store), in_a_loop(serve()):
        yield {
            rank: {"GEOCOMM_COLLECTOR": str(RunDir(folders[site].absolute()).rank_socket)}
            for rank, site in enumerate(sites)
        }
