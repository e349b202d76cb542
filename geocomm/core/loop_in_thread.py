"""Work of asyncio beside a program that has no loop: in a thread with one, which no task outlives."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Generator
from typing import Any


@contextlib.contextmanager
def in_a_loop(work: Coroutine[Any, Any, None]) -> Generator[None]:
    """Inside of the block `work` runs in a loop in a thread. At its end it is cancelled, and all that it began with it.

    A loop that is merely stopped leaves its tasks to the garbage collector, which complains of them in the log, later.
    """
    ready, ending = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def until_told() -> None:
        loops.append(asyncio.get_running_loop())
        serving = asyncio.create_task(work)
        told = asyncio.create_task(ending.wait())
        ready.set()
        await asyncio.wait((serving, told), return_when=asyncio.FIRST_COMPLETED)
        for task in (serving, told):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    thread = threading.Thread(target=asyncio.run, args=(until_told(),), name="geocomm-loop")
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):  # the work, and its loop with it, has ended
            loops[0].call_soon_threadsafe(ending.set)
        thread.join()
