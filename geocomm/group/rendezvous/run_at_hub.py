"""What `geocomm run` does: be the hub where that is here, else see that it lets this site in; then torchrun."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from geocomm.core.addresses import Address, listen_on, reached_here
from geocomm.core.child_processes import ending_with_this, send_signal
from geocomm.core.environment import collector_socket
from geocomm.core.message_log import log, tell
from geocomm.core.run_dir import RunDir
from geocomm.group.rendezvous.hub import Hub
from geocomm.group.rendezvous.to_collector import CollectorConfig
from geocomm.security.key_folder import Keys

MAX_STORES = 8
"""Stores that a hub has at once: that of the agents, and those of the last rounds."""
IS_HUB = "-"
"""In the command of a node's torchrun, in place of the time that the hub has to answer."""
_LINGER_S = 30.0
_OnSignal = Callable[[signal.Signals], object]


def environment_of_ranks(hub: Address, keys: Keys) -> dict[str, str]:
    """Variables that the ranks find: where they meet, and who they are. `import torch` brings geocomm, the backend and
    the check of other ones."""
    return {"GEOCOMM_HUB": str(hub), "TORCH_DEVICE_BACKEND_AUTOLOAD": "1", **environment_of_site(keys)}


def environment_of_site(keys: Keys) -> dict[str, str]:
    """Variables of ranks that say who they are."""
    return {"GEOCOMM_KEYS": str(Path(keys.folder).resolve()), "GEOCOMM_SITE": keys.identity.site}


def run_at_hub(
    hub: Address,
    listen: str | None,
    keys: Keys,
    arguments: list[str],
    wait_s: float,
    telemetry: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> int:
    """Run torchrun with `arguments` to its end; its exit status. On a node that is not the hub, does not return.

    telemetry: the ranks report once a second, and the hub keeps that in this folder. Its collector is started here,
    but where GEOCOMM_COLLECTOR says that there is one. variables: more of the ranks.

    Raises OSError or AddressError where it cannot listen.
    """
    # torch warns of each connection to its store whose address has no name, as loopback's has none in many places.
    # Here, where torch is not imported yet, and in the agent and its ranks.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    environment = os.environ | environment_of_ranks(hub, keys) | dict(variables or {})
    listener = hub.listen() if listen is None else listen_on(listen)
    # This node may not reach itself by the address that it has for others: behind a NAT, say.
    way = hub if listener is None else reached_here(listener)
    its_wait = IS_HUB if listener is not None else str(wait_s)
    command = [
        sys.executable,
        "-m",
        "geocomm.group.rendezvous.torchrun_process",
        str(hub),
        str(way),
        its_wait,
        *arguments,
    ]
    if listener is not None:
        if telemetry is None or collector_socket() is not None:
            return asyncio.run(_be_hub(listener, keys, command, environment, telemetry))
        collector, variables = _collect(CollectorConfig(folder=telemetry, keys=keys.folder))
        try:
            return asyncio.run(_be_hub(listener, keys, command, environment | variables, telemetry))
        finally:
            collector.terminate()
            collector.wait()
    if telemetry is not None:
        folder = Path(tempfile.mkdtemp(prefix="geocomm-"))
        environment |= _collect(CollectorConfig(folder=folder, keys=keys.folder, hub=str(hub)))[1]
    return os.execvpe(command[0], command, environment)


def _collect(config: CollectorConfig) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    """Start the collector of this node. Its process, and variables that tell the ranks of it."""
    config.folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(config.command(os.getpid()), stdin=subprocess.DEVNULL)
    return process, {"GEOCOMM_COLLECTOR": str(RunDir(config.folder).rank_socket)}


async def _be_hub(
    listener: socket.socket, keys: Keys, command: list[str], environment: dict[str, str], telemetry: Path | None
) -> int:
    stores = _Stores()
    hub = Hub(listener, keys, stores.port, log, telemetry)
    stores.in_use = hub.uses
    serving = asyncio.create_task(hub.serve())
    first = asyncio.create_task(stores.port("agents"))  # torch takes seconds to import, here as in torchrun
    with _passed_on() as pass_on_to:
        # In a session of its own: a Ctrl+C reaches it once, from here. A second one would keep it from waiting for
        # its ranks.
        process = await asyncio.create_subprocess_exec(
            *ending_with_this(command), env=environment, start_new_session=True
        )
        pass_on_to(functools.partial(send_signal, process))
        status = await process.wait()
        draining = asyncio.create_task(hub.drained(_LINGER_S))  # other nodes may still say good-bye
        pass_on_to(lambda _: draining.cancel())  # to whoever has no time for that
        await asyncio.wait([draining])
    if -status in (signal.SIGINT, signal.SIGTERM):  # before it could say so itself
        tell("run", f"ended by {signal.Signals(-status).name}")
    first.cancel()
    serving.cancel()
    await asyncio.gather(first, serving, return_exceptions=True)
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _passed_on() -> Generator[Callable[[_OnSignal], None]]:
    """Signals go to torchrun, which ends its workers; the hub stays until they are gone.

    Yields what to call with what takes a signal's number from then on. One that comes before there is any is passed on
    then.
    """
    target: _OnSignal | None = None
    early: list[signal.Signals] = []

    def pass_on(number: signal.Signals) -> None:
        if target is None:
            early.append(number)
        else:
            target(number)

    def pass_on_to(new: _OnSignal) -> None:
        nonlocal target
        target = new
        while early:
            new(early.pop(0))

    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, pass_on, number)
    try:
        yield pass_on_to
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


class _Stores:
    """torch's stores on loopback, made when first asked for."""

    def __init__(self) -> None:
        self.in_use: Callable[[str], bool] = lambda _: False
        """Whether anybody is connected to a store, by its name: such a one stays."""
        self._stores: OrderedDict[str, Any] = OrderedDict()
        self._turn = asyncio.Lock()

    async def port(self, name: str) -> int | None:
        if name != "agents" and not name.startswith("round-"):
            return None
        async with self._turn:
            if name not in self._stores:
                left = [other for other in self._stores if other != "agents" and not self.in_use(other)]
                if len(self._stores) >= MAX_STORES:
                    if not left:
                        return None
                    await asyncio.to_thread(self._stores.pop, left[0])
                self._stores[name] = await asyncio.to_thread(_new_store)
            return self._stores[name].port


def _new_store() -> Any:
    from geocomm.group.rendezvous.hub_rendezvous import loopback_store

    return loopback_store()
