"""Two ways for the frames of a round, in turns: from rank to rank by mail, and from agent to agent out of files.

`python benchmarks/bench_frames.py`; with `--wan 1e9` over emulated lines of 1 Gbit/s, which needs what `geocomm wan`
needs. Each site has a frame on its disk. The time is from then until all sites have the frames of all others on theirs,
with their hashes looked at. It ends in an error where one does not come.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import hashlib
import json
import os
import queue
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from geocomm.core.addresses import listen_on
from geocomm.core.native import native
from geocomm.elastic.files.fetch import Fetcher, Outcome
from geocomm.elastic.files.file_server import FileServer
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.journal.messages import Wanted
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import CONTROL_VARIABLE, WanRun
from geocomm.security.job_ca import JobCa
from geocomm.security.key_folder import Identity, Keys
from geocomm.sync.local_steps.model.host_memory import bytes_of
from geocomm.wire.doorway import Doorway
from geocomm.wire.greeting import Greeting
from geocomm.wire.tls_stream import TlsStream

WAYS = ("mail", "agents")
_TOKEN = bytes(16)
_PATIENCE_S = 300.0


class Site:
    """One site, as one process. All meet through files in a folder."""

    def __init__(self, folder: Path, site: str, sites: list[str], size: int, rounds: int) -> None:
        """size: of a frame, in bytes."""
        self._folder, self._site, self._sites, self._size = folder, site, sites, size
        self._host = "127.0.0.1"
        if CONTROL_VARIABLE in os.environ:
            self._host = subprocess.run(["hostname", "-I"], check=True, capture_output=True, text=True).stdout.split()[
                0
            ]
        self._store = FragmentStore(folder / f"run-{site}")
        self._contents = [torch.frombuffer(bytearray(os.urandom(size)), dtype=torch.uint8) for _ in range(rounds)]
        self._hashes = [hashlib.sha256(bytes_of(content)).hexdigest() for content in self._contents]
        for number, content in enumerate(self._contents):
            self._store.write_frame(0, number, site, [bytes_of(content)])

    def mail(self) -> None:
        """Send and receive by mail."""
        endpoint = native().Endpoint(
            bind_address=self._host,
            keys=str(self._folder / "keys" / self._site),
            site=self._site,
            link_deadline=timedelta(seconds=60),
        )
        mail = native().Mail(endpoint=endpoint, token=_TOKEN, max_bytes=self._size)
        ids: dict[str, bytes] = {}
        for site, (name, port, host) in self._meet("here", [mail.id.hex(), mail.port, self._host]).items():
            if site != self._site:
                ids[site] = bytes.fromhex(name)
                mail.peer(ids[site], host, port, site, site)
        arrived: queue.Queue[tuple[str, torch.Tensor | None, str]] = queue.Queue()

        def came(site: str, content: torch.Tensor | None, why: str) -> None:
            arrived.put((site, content, why))

        def move(number: int) -> None:
            for site, name in ids.items():
                mail.receive(name, number, 0, functools.partial(came, site))
                mail.send(name, number, 0, self._contents[number])
            for _ in ids:
                site, content, why = arrived.get(timeout=_PATIENCE_S)
                if content is None:
                    raise RuntimeError(f"no frame of {site}: {why}")
                self._store.write_frame(0, number, site, [bytes_of(content)])

        self._measure(move)

    def agents(self) -> None:
        """Give and fetch files."""
        asyncio.run(self._run_agent())

    async def _run_agent(self) -> None:
        keys = Keys.load(self._folder / "keys" / self._site)
        server = FileServer(self._store, lambda: (0, 0))

        async def serve(stream: TlsStream, _: Greeting, peer: Identity) -> None:
            await server.serve(stream, peer.site)

        listener = listen_on(f"{self._host}:0")
        serving = asyncio.create_task(Doorway(listener, keys, serve, print).serve())
        at = f"{self._host}:{listener.getsockname()[1]}"
        here = await asyncio.to_thread(self._meet, "here", [at, self._hashes])
        fetcher, loop = Fetcher(self._store, keys, print), asyncio.get_running_loop()

        async def fetch(site: str, number: int) -> None:
            source, hashes = here[site]
            wanted = Wanted(fragment=0, version=number, site=site, frame=hashes[number], bytes=self._size)
            if await fetcher.frame(wanted, [source]) is not Outcome.HERE:
                raise RuntimeError(f"no frame of {site}")

        async def fetch_all(number: int) -> None:
            await asyncio.gather(*(fetch(site, number) for site in self._sites if site != self._site))

        def move(number: int) -> None:
            asyncio.run_coroutine_threadsafe(fetch_all(number), loop).result(_PATIENCE_S)

        await asyncio.to_thread(self._measure, move)
        serving.cancel()

    def _measure(self, move: Callable[[int], None]) -> None:
        rows: list[tuple[float, float]] = []
        for number in range(len(self._contents)):
            self._meet(f"begin{number}", None)
            begun, cpu = time.monotonic(), _cpu_s()
            move(number)
            took = time.monotonic() - begun
            self._meet(f"done{number}", None)
            rows.append((took, _cpu_s() - cpu))
        self._tell("result", rows)

    def _tell(self, name: str, what: Any) -> None:
        new = self._folder / f"{name}-{self._site}.new"
        new.write_text(json.dumps(what))
        new.rename(new.with_suffix(""))

    def _meet(self, name: str, what: Any) -> dict[str, Any]:
        """What each site says at this point, once all have come there."""
        self._tell(name, what)
        end, paths = time.monotonic() + _PATIENCE_S, {site: self._folder / f"{name}-{site}" for site in self._sites}
        while lacking := [site for site, path in paths.items() if not path.exists()]:
            if time.monotonic() > end:
                raise TimeoutError(f"{', '.join(lacking)} did not come to {name} within {_PATIENCE_S:g} s")
            time.sleep(0.005)
        return {site: json.loads(path.read_text()) for site, path in paths.items()}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(way: str, count: int, size: int, rounds: int, link: EmulatedLink | None) -> list[tuple[float, float]]:
    """Of each round: seconds of the slowest site, and CPU seconds of all sites."""
    sites = [f"site{number}" for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="bench-frames-", dir="/dev/shm") as name:
        folder = Path(name)
        JobCa.create(folder / "keys", "bench", sites, 2)
        command = [sys.executable, __file__, "--worker", way, "--folder", name, "--sites", str(count)]
        command += ["--size", str(size), "--rounds", str(rounds)]
        if link is None:
            processes = [subprocess.Popen(command, env=os.environ | {"GEOCOMM_SITE": site}) for site in sites]
            statuses = [process.wait() for process in processes]
        else:
            with WanRun(EmulatedWan.uniform(count, link), command) as run:
                statuses, report = [run.wait()], run.report()
            late_s = 0.0 if report is None else report.max_lateness_s
            print(f"packets came up to {late_s * 1e3:.1f} ms late")
        if any(statuses):
            raise RuntimeError(f"a site ended with {statuses}")
        rows = [json.loads((folder / f"result-{site}").read_text()) for site in sites]
    return [(max(row[at][0] for row in rows), sum(row[at][1] for row in rows)) for at in range(rounds)]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--size", type=int, default=64 << 20, help="bytes of a frame")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wan", type=float, help="bit/s of each emulated line; without: loopback")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds, one way")
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        sites = [f"site{number}" for number in range(given.sites)]
        site = Site(given.folder, os.environ["GEOCOMM_SITE"], sites, given.size, given.rounds)
        site.mail() if given.worker == "mail" else site.agents()
        return
    link = None if given.wan is None else EmulatedLink(rate_bps=given.wan, delay_s=given.delay)
    for way in WAYS:
        for took, cpu in measured(way, given.sites, given.size, given.rounds, link):
            print(f"{way:7} {given.sites} sites, {given.size >> 20} MiB: {took:.2f} s, CPU {cpu:.2f} s", flush=True)


if __name__ == "__main__":
    main()
