"""Accepting connections, of which none is lost when the accepting ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

_PAUSE_S = 0.1


async def accept_forever(
    listener: socket.socket, begin: Callable[[socket.socket, Any], asyncio.Task[None]], log: Callable[[str], None]
) -> None:
    """Have `begin` make a task of each connection and its source, until cancelled; then all is closed.

    A connection is closed when its task ends; the log tells of an error of this program. One is accepted in a turn of
    the event loop, so that a flood leaves the tasks their turn. asyncio's own servers, and `sock_accept`, lose a
    connection that comes while they are cancelled: its peer would wait for an answer. From Python 3.12 on such a server
    also waits for its connections where it ends.
    """
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def accept() -> None:
        try:
            connection, source = listener.accept()
        except BlockingIOError:  # it is gone again
            return
        except OSError as error:  # out of descriptors
            log(f"cannot accept a connection: {error.strerror}")
            loop.remove_reader(listener)
            loop.call_later(_PAUSE_S, accept_again)
            return
        task = begin(connection, source)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        # Not by the task, which does nothing at all where it is cancelled before its first step.
        task.add_done_callback(lambda _: connection.close())
        task.add_done_callback(tell)

    def tell(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, OSError):
            log(f"ended a connection by an error of this program: {''.join(traceback.format_exception(error))}")

    def accept_again() -> None:
        if listener.fileno() >= 0:
            loop.add_reader(listener, accept)

    accept_again()
    try:
        await asyncio.Event().wait()
    finally:
        loop.remove_reader(listener)
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve_streams(
    listener: socket.socket,
    carry: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    log: Callable[[str], None],
) -> None:
    """`accept_forever` with a task of `carry` for each connection, which is closed when that returns."""

    async def serve(connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            await carry(reader, writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        finally:
            writer.transport.abort()

    await accept_forever(listener, lambda connection, _: asyncio.create_task(serve(connection)), log)
