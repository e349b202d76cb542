"""An event loop whose clock jumps to what is due next: a history of minutes takes as long as its work does."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any

from typing_extensions import override

_MOST_OF_DISK_S = 0.02
_LEAST_S = 1e-6
"""Less would be no time at all, once it is added to the clock."""
_MOST_AT_ONE_TIME = 100_000


class StuckError(AssertionError):
    """Nothing will ever happen any more; or time does not pass."""


class NumberedTask(asyncio.Task[Any]):
    """Hashed by its number, not by its address: sets of such have the same order in each process."""

    def __init__(self, work: Any, loop: VirtualLoop, **given: Any) -> None:
        self.number = loop.next_number()
        super().__init__(work, loop=loop, **given)

    @override
    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.BaseEventLoop):
    """What is done in a thread elsewhere is done at once here, and its end comes after the time of a disk."""

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._now = 0.0
        self._times_now = 0
        self._chance = chance
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        """A heap: those of one time in the order in which they were asked for."""
        self.work_takes_s = 0.0
        """What is done in a thread adds here how long it takes, beside the time of a disk."""

    def next_number(self) -> int:
        """Of a task, and of a timer."""
        return next(self._numbers)

    @override
    def time(self) -> float:
        return self._now

    @override
    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, self.next_number(), timer))
        return timer

    @override
    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        least = _LEAST_S if delay > 0 else 0.0
        return self.call_at(self._now + max(delay, least), callback, *args, context=context)

    @override
    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.create_future()
        self.work_takes_s = 0.0
        try:
            result, failure = func(*args), None
        except Exception as error:
            result, failure = None, error

        def end() -> None:
            if future.done():
                return
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)

        self.call_later(self._chance.uniform(0, _MOST_OF_DISK_S) + self.work_takes_s, end)
        return future

    def _run_once(self) -> None:
        """In the place of the one that waits for sockets and the clock."""
        ready, timers = self._ready, self._timers
        while timers and (timers[0][0] <= self._now or timers[0][2].cancelled() or not ready):
            when, _, timer = heapq.heappop(timers)
            if timer.cancelled():
                continue
            if when > self._now:
                self._now, self._times_now = when, 0
            ready.append(timer)
        if not ready and not self._stopping:
            raise StuckError("nothing is due any more, and somebody waits")
        self._times_now += 1
        if self._times_now > _MOST_AT_ONE_TIME:
            raise StuckError(f"time stands still at {self._now:.3f} s: something is done without end")
        for _ in range(len(ready)):
            handle: Any = ready.popleft()
            if not handle._cancelled:
                handle._context.run(handle._callback, *handle._args)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays until it is due."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""
