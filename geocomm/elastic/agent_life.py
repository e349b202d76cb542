"""How an agent ends, and what it has begun until then."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from geocomm.elastic.leader import StartAgain


class AgentEnded(Exception):
    """The site's part in the run is over; `refused`: not in good order, and the message says why."""

    def __init__(self, why: str, *, refused: bool) -> None:
        super().__init__(why)
        self.refused = refused


class AgentLife:
    """Of one agent, from its start to its end. Used in one event loop."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Raises AgentEnded, StartAgain, or the error of what was started."""
        self._tasks: set[asyncio.Task[None]] = set()

    def end(self, why: str, *, refused: bool) -> None:
        """The site's part is over."""
        self._fail(AgentEnded(why, refused=refused))

    def start_again(self, why: str) -> None:
        """This agent begins anew from its run folder."""
        self._fail(StartAgain(why))

    def fail(self, error: Exception) -> None:
        """This agent cannot go on."""
        self._fail(error)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin work, whose error ends the agent."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    async def stop(self) -> None:
        """Cancel what was started."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)
