"""How to wait: when to try again, when a wait is worth a word in the log, and for the first of several to end.

`for_ever` is for work that has no end, `RunningClock` for judging the silence of others."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

FIRST_WORD_S = 10.0
"""A wait that takes longer is logged."""
_GROWTH = 3.0
_AGAIN_S = 1.0
_LOOK_S = 0.5


def pauses(first_s: float, last_s: float) -> Iterator[float]:
    """Seconds to wait before each further attempt: twice as many each time, up to `last_s`, and at random a part of
    them, of half at least, so that those who lost the same peer do not come back in step."""
    pause_s = first_s
    while True:
        yield pause_s * random.uniform(0.5, 1)
        pause_s = min(2 * pause_s, last_s)


def monotonic() -> float:
    """Seconds. Looked up at each call: in a simulation time is another."""
    return time.monotonic()


class Patience:
    """When a word on a wait is due: after 10 s, 30 s, 90 s and so on."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        """The wait begins now."""
        self._now = now
        self._begun = now()
        self._next_s = FIRST_WORD_S

    @property
    def waited_s(self) -> float:
        """Seconds so far."""
        return self._now() - self._begun

    @property
    def left_s(self) -> float:
        """Seconds until the next word is due; 0 or less: it is due."""
        return self._next_s - self.waited_s

    def put_off(self) -> None:
        """The word was said; the next one comes later."""
        self._next_s *= _GROWTH


class Waiting:
    """A wait that logs what it is for, whenever `Patience` says that a word is due."""

    def __init__(self, log: Callable[[str], None], now: Callable[[], float] = monotonic) -> None:
        self._log, self._patience = log, Patience(now)

    @property
    def is_due(self) -> bool:
        """Whether a line is."""
        return self._patience.left_s <= 0

    def tell(self, what: Callable[[], str]) -> None:
        """`what` is asked only where a line is due."""
        if self.is_due:
            self._patience.put_off()
            self._log(f"waiting for {what()}")


@contextmanager
def said_while(log: Callable[[str], None], what: Callable[[], str]) -> Generator[None]:
    """Inside of the block a thread logs what it waits for, whenever a word is due: for work that blocks in many
    places."""
    ended = threading.Event()

    def say() -> None:
        waiting = Waiting(log)
        while not ended.wait(_LOOK_S):
            waiting.tell(what)

    thread = threading.Thread(target=say, name="geocomm-words", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@asynccontextmanager
async def said_meanwhile(log: Callable[[str], None], what: Callable[[], str]) -> AsyncGenerator[None]:
    """As `said_while`, by a task: for work that awaits."""

    async def say() -> None:
        waiting = Waiting(log)
        while True:
            await asyncio.sleep(_LOOK_S)
            waiting.tell(what)

    saying = asyncio.create_task(say())
    try:
        yield
    finally:
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)


async def until_one_ends(*works: Awaitable[Any]) -> None:
    """Wait until one of these has ended, and cancel the others. Raises what it raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def comes(event: asyncio.Event, within_s: float) -> bool:
    """Wait for an event for so many seconds at most. Whether it has come."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
    return event.is_set()


async def for_ever(what: str, work: Callable[[], Awaitable[None]], log: Callable[[str], None]) -> None:
    """Do work that has no end until cancelled: where it ends all the same, by an error of this program, say so, and
    begin it again. what: it in words, such as "the reaper of sessions"."""
    while True:
        try:
            await work()
            why = "with no reason"
        except Exception:
            why = f"by an error of this program: {traceback.format_exc()}"
        log(f"{what} has ended {why}; it begins again")
        await asyncio.sleep(_AGAIN_S)


class RunningClock:
    """Seconds in which this process could hear: of each time between two looks, `most_s` at most count.

    What others said while it was stopped, or got no CPU, lies in its sockets, and it reads that after its timers. It is
    looked at several times within `most_s`.
    """

    def __init__(self, now: Callable[[], float], most_s: float = 1.0) -> None:
        self._now, self._most_s = now, most_s
        self._looked = now()
        self._seconds = 0.0

    def __call__(self) -> float:
        now = self._now()
        self._seconds += min(now - self._looked, self._most_s)
        self._looked = now
        return self._seconds
