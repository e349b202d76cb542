"""The way to a node's collector of telemetry: where its sockets are, and how another site's reports get there.

The hub and the leader of an elastic run do not read reports: they carry the bytes to the collector, which is a process
of its own, so that no amount of reports slows a rendezvous down.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from geocomm.core.patience import until_one_ends
from geocomm.core.run_dir import RunDir
from geocomm.wire.greeting import NotYetHere, PacketKind, SessionRefused, offset_bytes, write_packet
from geocomm.wire.tls_stream import TlsStream

_READ_BYTES = 64 << 10
_SILENCE_S = 60.0


@dataclass(frozen=True)
class CollectorConfig:
    """The settings of a collector."""

    folder: Path
    """The folder of its sockets, and of the run store where it has one."""
    keys: str | Path = ""
    """This site's, for the way to another; empty: there is none, and ranks of all sites report here."""
    hub: str = ""
    """host:port of the hub, which has the store; empty: this collector has."""
    elastic: bool = False
    """The folder is that of an elastic run. Its files say who leads, and that agent gets the reports too."""

    def command(self, parent: int) -> list[str]:
        """What runs it, until the process `parent`, which starts it, has ended."""
        config = [str(self.folder.resolve()), str(Path(self.keys).resolve()) if self.keys else "", self.hub]
        return [
            sys.executable,
            "-m",
            "geocomm.observe.collector_process",
            *config,
            str(int(self.elastic)),
            str(parent),
        ]


def collect_here(folder: Path, local_rank: int) -> str:
    """Have the ranks of this machine report to a folder by themselves. The first one starts the collector, which ends
    with it. Returns the socket that takes the reports."""
    if local_rank == 0:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        subprocess.Popen(CollectorConfig(folder).command(os.getpid()), stdin=subprocess.DEVNULL)
    return str(RunDir(folder).rank_socket)


async def carry_to_collector(stream: TlsStream, site: str, folder: Path | None) -> None:
    """Carry what a site reports to the collector of `folder`, until either ends it. Refused where there is none."""
    if folder is None:
        raise SessionRefused("this run keeps no telemetry here: start the hub with --telemetry FOLDER")
    try:
        ended, collector = await asyncio.open_unix_connection(RunDir(folder).collector_socket)
    except OSError as error:
        raise NotYetHere(f"the collector of this run's telemetry is not there: {error.strerror}") from None
    try:
        collector.write(site.encode() + b"\n")
        await write_packet(stream, PacketKind.WELCOME, offset_bytes(0))
        with contextlib.suppress(OSError):  # that is an end, too
            await until_one_ends(_carry(stream, collector), _until_end(ended))
    finally:
        collector.close()


async def _until_end(collector: asyncio.StreamReader) -> None:
    """It says nothing, and closes where it refuses."""
    await collector.read(1)


async def _carry(stream: TlsStream, collector: asyncio.StreamWriter) -> None:
    while True:
        async with asyncio.timeout(_SILENCE_S):
            collector.write(await stream.read_some(_READ_BYTES))
            await collector.drain()
