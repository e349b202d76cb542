"""Whether the disk of a run folder takes frames: while it does not, its site is away from the run.

A round lists what lies on two live sites' disks. One that is live and keeps nothing would hold up the rounds of all.
"""

from __future__ import annotations

import asyncio

from geocomm.core.message_log import log
from geocomm.core.patience import Waiting
from geocomm.elastic.site.run_view import RunView
from geocomm.elastic.site.site_ranks import SiteRanks

_LOOK_S = 5.0
"""Between two looks whether there is room again."""


class RunDisk:
    """Used in one event loop."""

    def __init__(self, view: RunView, ranks: SiteRanks) -> None:
        self._view, self._ranks = view, ranks
        self._watch: asyncio.Task[None] | None = None
        self._size = 0
        """Of the largest file that could not be kept since the disk took all."""

    def failed(self, size: int) -> None:
        """A file of so many bytes could not be kept: it may be the disk that takes none."""
        self._size = max(self._size, size)
        if self._watch is None:
            self._watch = self._view.life.start(self._until_it_takes_files())
            self._watch.add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._watch, self._size = None, 0

    async def _until_it_takes_files(self) -> None:
        waiting = Waiting(log)
        while why := await asyncio.to_thread(self._problem):
            if not self._ranks.withheld:
                log(
                    f"{why}. This site is away from the run, trains on and does not count: free room there, and it "
                    "comes back by itself"
                )
            self._ranks.withhold(why)
            waiting.tell(lambda why=why: f"room: {why}")
            await asyncio.sleep(_LOOK_S)
        if self._ranks.withheld:
            log("the run folder takes frames again: this site comes back to the run")
            self._ranks.give()

    def _problem(self) -> str:
        """Why a file of that size cannot be kept; empty: it can."""
        try:
            self._view.store.try_room(self._size)
        except OSError as error:
            return f"its run folder takes no frames ({error.strerror or error})"
        return ""
