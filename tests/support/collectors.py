"""Collectors of telemetry for ranks of several sites on one machine, with one run store."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from geocomm.core.run_dir import RunDir
from geocomm.observe.telemetry.collector import Collector
from geocomm.observe.telemetry.run_store import RunStore


@contextlib.contextmanager
def collecting(folder: Path, sites: Sequence[str]) -> Iterator[dict[int, dict[str, str]]]:
    """Keep in `folder` what ranks report. Yields the environment of each rank; `sites` are theirs."""
    store = RunStore(folder, write=True)
    folders = {site: folder / site for site in sites}
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with asyncio.TaskGroup() as serving:
            for site, at in folders.items():
                serving.create_task(Collector(at, site, store, None, lambda: None, print).serve())

    serving = loop.create_task(serve())

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(serving)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield {
            rank: {"GEOCOMM_COLLECTOR": str(RunDir(folders[site].absolute()).rank_socket)}
            for rank, site in enumerate(sites)
        }
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join()
        loop.close()
        store.close()
