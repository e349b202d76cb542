"""An event loop whose clock jumps to what is due next: a history of minutes takes as long as its work does."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

_MOST_OF_DISK_S = 0.02
_MOST_AT_ONE_TIME = 100_000


class StuckError(AssertionError):
    """Nothing will ever happen any more; or time does not pass."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """What is done in a thread elsewhere is done at once here, and its end comes after the time of a disk."""

    def __init__(self, chance: random.Random) -> None:
        self._now = 0.0
        self._chance = chance
        super().__init__(_Jumping(self))

    @override
    def time(self) -> float:
        return self._now

    def pass_time(self, seconds: float) -> None:
        """Jump."""
        self._now += seconds

    @override
    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.create_future()
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

        self.call_later(self._chance.uniform(0, _MOST_OF_DISK_S), end)
        return future


class _Jumping(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop, self._times = loop, 0

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StuckError("nothing is due any more, and somebody waits")
        if timeout > 0:
            self._loop.pass_time(timeout)
            self._times = 0
        self._times += 1
        if self._times > _MOST_AT_ONE_TIME:
            raise StuckError(f"time stands still at {self._loop.time():.3f} s: something is done without end")
        return []

    @override
    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return super().get_map() or {}
