"""The collector as a process, which `geocomm run` starts on each node.

It ends after SIGTERM, or when the process that started it has ended; in both cases the last reports have a moment to
arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import sqlite3
import sys
import traceback
from pathlib import Path

from geocomm.core.addresses import Address, AddressError
from geocomm.core.environment import alert_webhook
from geocomm.core.file_systems import FolderInUseError, held_by_one
from geocomm.core.message_log import logger
from geocomm.core.patience import comes
from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.known_agents import about, leader_address
from geocomm.group.rendezvous.to_collector import CollectorConfig
from geocomm.observe.alerts.alert_log import AlertWebhook
from geocomm.observe.alerts.alerting import Alerting
from geocomm.observe.telemetry.collector import Collector
from geocomm.observe.telemetry.run_store import NoStoreError, RunStore
from geocomm.security.key_folder import Keys
from geocomm.wire.doorway import raise_descriptor_limit

_LOOK_S = 0.5
_LAST_REPORTS_S = 1.0
_LAST_LIMIT_S = 10.0
"""For processes that end on a busy machine, and for the line."""
_LOCK_LIMIT_S = 5.0
"""A collector of a run before may be at its end."""


def _target(config: CollectorConfig) -> Address | None:
    """Where the reports of this node go, now."""
    address = leader_address(config.folder) if config.elastic else config.hub
    with contextlib.suppress(AddressError):
        return Address.parse(address) if address else None
    return None


async def _run(config: CollectorConfig, parent: int) -> None:
    keys = Keys.load(config.keys) if config.keys else None
    site = None if keys is None else keys.identity.site
    store = None if config.hub else RunStore(config.folder, write=True)
    with contextlib.ExitStack() as stack:
        if store is not None:
            stack.enter_context(contextlib.closing(store))
            stack.callback(_alerting(config).close)
        target = functools.partial(_target, config)
        collector = Collector(config.folder, site, store, keys, target, logger().warning)
        asked = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
        serving = asyncio.create_task(collector.serve())
        while os.getppid() == parent and not asked.is_set() and not serving.done():
            await comes(asked, _LOOK_S)
        last = asyncio.create_task(collector.last_reports(_LAST_REPORTS_S, _LAST_LIMIT_S))
        await asyncio.wait([serving, last], return_when=asyncio.FIRST_COMPLETED)
        last.cancel()
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving  # where it ended by itself: why


def _alerting(config: CollectorConfig) -> Alerting:
    """The alerting of a run; of an elastic run the leader alone has one: it gets the reports of all sites."""
    log = logger().warning
    try:
        url = alert_webhook()
    except ValueError as error:  # of the reader of the environment
        log(f"alerts go to the log alone: {error}")
        url = None
    applies = (lambda: about(config.folder).leads) if config.elastic else lambda: True
    return Alerting(config.folder, AlertWebhook(url, log), log, applies)


def main(arguments: list[str]) -> None:
    """Entry of the process. What goes wrong costs one line: training goes on without telemetry."""
    folder, keys, hub, elastic, parent = arguments
    config = CollectorConfig(Path(folder), keys, hub, elastic=elastic == "1")
    for number in (signal.SIGINT, signal.SIGHUP):  # for the program that started it
        signal.signal(number, signal.SIG_IGN)
    os.nice(5)
    raise_descriptor_limit()
    try:
        with held_by_one(RunDir(config.folder).collector_lock, _LOCK_LIMIT_S):
            asyncio.run(_run(config, int(parent)))
    except FolderInUseError as error:
        if config.keys:  # else the first rank of another site on this machine was earlier
            logger().warning(f"no telemetry: {folder} is in use by another collector ({error}): name another folder")
            sys.exit(1)
    except (OSError, sqlite3.Error, NoStoreError) as error:
        logger().warning(f"no telemetry: {error}; training goes on without")
        sys.exit(1)
    except Exception:
        logger().warning(
            f"no telemetry, by an error of this program; training goes on without: {traceback.format_exc()}"
        )
        sys.exit(1)
    finally:
        if config.hub:  # made for this one
            shutil.rmtree(config.folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
