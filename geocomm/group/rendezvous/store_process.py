"""A hub or a tunnel in a process of its own, which lives as long as the one that started it.

A process of its own, since the store's calls may come from C++ that holds Python's lock, and strangers that knock at
the hub shall not slow down training. Run as `python -m geocomm.group.rendezvous.store_process CONFIG`; StoreProcess is
the side that starts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from geocomm.core.addresses import Address, loopback_listener
from geocomm.core.child_processes import input_of, output_of
from geocomm.core.message_log import log
from geocomm.group.rendezvous.hub import Hub
from geocomm.group.rendezvous.tunnel import Tunnel, probe
from geocomm.security.key_folder import Keys, KeysError
from geocomm.wire.greeting import SessionRefused

FLUSH_LIMIT_S = 5.0
_START_LIMIT_S = 60.0


class StoreProcess:
    """A running hub or tunnel. close() ends it, and so does the end of this process, however it comes."""

    def __init__(self, listener: socket.socket, config: dict[str, Any], limit_s: float) -> None:
        self.port: int = listener.getsockname()[1]
        package = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        text = json.dumps(config | {"listener": listener.fileno(), "limit_s": limit_s})
        with listener:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "geocomm.group.rendezvous.store_process", text],
                env=os.environ | {"PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[listener.fileno()],
            )
        self._stdin, self._stdout = input_of(self._process), output_of(self._process)
        try:
            outcome = self._first_line(limit_s + _START_LIMIT_S)
        except BaseException:  # Ctrl+C, say
            self.close()
            raise
        if error := outcome.get("error"):
            self.close()
            raise (KeysError if outcome["keys"] else ConnectionError)(error)

    @classmethod
    def tunnel(cls, hub: Address, keys: str, store: str, limit_s: float) -> StoreProcess:
        """A tunnel whose `port` is that of a store. The hub has `limit_s` to answer.

        KeysError: one end does not accept the other's keys. ConnectionError: no answer, or a refusal.
        """
        return cls(loopback_listener(), {"hub": str(hub), "keys": keys, "store": store}, limit_s)

    @classmethod
    def hub(cls, listener: socket.socket, keys: str) -> StoreProcess:
        """A hub that serves `listener`, which it takes over, and the stores that add_store() names. KeysError."""
        return cls(listener, {"keys": keys}, 0)

    def add_store(self, name: str, port: int) -> None:
        """Tell the hub of a store at a loopback port."""
        self._stdin.write(json.dumps({"store": name, "port": port}).encode() + b"\n")
        self._stdin.flush()

    def close(self) -> None:
        """End it when what was written to the store has arrived. Idempotent."""
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            self._process.wait(2 * FLUSH_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def leave_to_parent(self) -> None:
        """Close the pipes in a forked child: the process is to end with the parent, so nothing here may hold them."""
        for pipe in (self._stdin, self._stdout):
            pipe.close()
        self._process.returncode = 0  # not this process's child: nothing to wait for

    def _first_line(self, limit_s: float) -> dict[str, Any]:
        end = time.monotonic() + limit_s
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._stdout], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._stdout.fileno(), 4096) if ready else b""
            if not part:
                return {"error": "the process of the hub's connection did not start", "keys": False}
            line += part
        return json.loads(line)


class _NamedStores:
    """The stores of a hub as its starter names them; who asks too early waits."""

    def __init__(self) -> None:
        self._ports: dict[str, int] = {}
        self._news = asyncio.Event()

    def add(self, name: str, port: int) -> None:
        self._ports[name] = port
        self._news.set()

    async def port(self, name: str) -> int | None:
        while name not in self._ports:
            self._news.clear()
            await self._news.wait()
        return self._ports[name]


async def _run(config: dict[str, Any]) -> None:
    listener = socket.socket(fileno=config["listener"])
    keys = Keys.load(config["keys"])
    stores = _NamedStores()
    ended = asyncio.create_task(_until_input_ends(lambda line: stores.add(line["store"], line["port"])))
    if "hub" in config:
        address = Address.parse(config["hub"])
        probing = asyncio.create_task(probe(address, keys, config["limit_s"], log))
        await asyncio.wait([probing, ended], return_when=asyncio.FIRST_COMPLETED)
        if not probing.done():  # the program that waited for this is gone: signals do not end this process
            probing.cancel()
            return
        probing.result()
        server: Hub | Tunnel = Tunnel(listener, address, keys, config["store"], log)
    else:
        server = Hub(listener, keys, stores.port, log)
    _answer({})
    serving = asyncio.create_task(server.serve())
    await ended
    await server.drained(FLUSH_LIMIT_S)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def _until_input_ends(take: Callable[[dict[str, Any]], None]) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        take(json.loads(line))


def _answer(outcome: dict[str, Any]) -> None:
    print(json.dumps(outcome), flush=True)


def main() -> None:
    """Entry of the process."""
    # A signal to the whole group is for the program that this serves, which may still need its store.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        asyncio.run(_run(json.loads(sys.argv[1])))
    except (KeysError, SessionRefused, OSError) as error:
        _answer({"error": str(error), "keys": isinstance(error, KeysError)})


if __name__ == "__main__":
    main()
