"""The run of the elastic soak: three sites over an emulated WAN with TLS, which train until there is a file `stop`."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

from geocomm.elastic.journal.entries import Round
from geocomm.lab.demo.elastic_run import JournalWatch, SeenEntry, wait_for_run
from geocomm.lab.emulator.emulated_keys import site_environment
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanReport, WanRun
from support.elastic_soak_rank import BATCH, CONTEXT
from support.fault_run import RankLog
from support.wan_support import IMPORTS

LINK = EmulatedLink(rate_bps=200e6, delay_s=0.15, loss=0.001)
SITES = ("site0", "site1", "site2")
STEP_S, EVERY = 0.1, 20
FAULT_EVERY_S = 20.0
SNAPSHOT_S = 30.0
KINDS = (
    "rank killed",
    "site killed",
    "leader's site killed",
    "site silent",
    "line cut between two",
    "cut from the leader",
    "agent killed",
    "leader's agent killed",
    "leave and return",
    "all killed",
    "disk lost",
)
LEAST_GOODPUT = 0.9
"""Of the time in which the machines are there, with a fault every FAULT_EVERY_S."""
PAUSE = (0.85, 1.06)
"""Of the tokens of the undisturbed runs: from where to where no fault comes, so that what stays of faults is compared,
and not the noise of the rounds that only some sites are in.
"""

# Its $0 is Python.
START = (
    'while ! [ -e "$FOLDER/stop" ]; do if [ -e "$FOLDER/down-$GEOCOMM_SITE" ]; then sleep 0.1; continue; fi; '
    '"$0" -m geocomm run --elastic --hub "$MASTER_ADDR:$MASTER_PORT" --run-dir "$FOLDER/run-$GEOCOMM_SITE" '
    f"--wait-for {','.join(SITES)} --snapshot-every {SNAPSHOT_S / 60:g} "
    f'-- --nproc-per-node 1 -m support.elastic_soak_rank "$FOLDER" "$SEED" {STEP_S:g} '
    f"{EVERY} || sleep 0.5; done"
)


class Problem(Exception):
    """What the soak cannot go on after."""


@dataclass
class Fault:
    """One that was applied."""

    kind: str
    hit: tuple[str, ...]
    """Sites whose own steps it may hold up."""
    began: float
    over: float = math.nan
    away_s: float | None = None
    """Until another site had the entry that the site is away."""
    recovered: float = math.nan
    """When a round listed all sites again."""


@dataclass
class Run:
    """One run of the three sites."""

    name: str
    folder: Path
    wan: WanRun
    watches: dict[str, JournalWatch]
    logs: dict[str, RankLog]
    faults: list[Fault] = field(default_factory=list[Fault])
    began: float = 0.0
    ended: float = 0.0
    report: WanReport | None = None

    def look(self) -> None:
        """Read what is new."""
        for watch in self.watches.values():
            watch.look()

    @property
    def journal(self) -> list[SeenEntry]:
        """The longest."""
        return max((watch.seen for watch in self.watches.values()), key=len)

    def wait(self, done: Callable[[], bool], what: str, limit_s: float) -> None:
        """Problem: it is not there in time."""
        if why := wait_for_run(self.wan, self.watches.values(), done, what, limit_s):
            raise Problem(f"{self.name}: {why}")

    def wait_full_rounds(self, count: int, limit_s: float, after: float) -> float:
        """Until so many rounds since `after` list all sites; when the last of them was seen."""
        found: list[float] = []

        def there() -> bool:
            found[:] = [
                one.at
                for one in self.journal
                if one.at > after and isinstance(one.entry, Round) and len(one.entry.members) == len(SITES)
            ]
            return len(found) >= count

        self.wait(there, f"{count} rounds of all sites", limit_s)
        return found[count - 1]

    def kill(self, site: str, part: str) -> None:
        """Kill processes of a site whose command line has this and is no launcher's."""
        launcher = {"geocomm.elastic.torchrun_of_site", "--elastic"}
        self._signal(site, signal.SIGKILL, lambda words: part in words and not launcher & set(words))

    def leave(self, site: str) -> None:
        """SIGTERM to `geocomm run`, as a scheduler sends it."""
        self._signal(site, signal.SIGTERM, lambda words: "--elastic" in words)

    def _signal(self, site: str, number: int, is_meant: Callable[[list[str]], bool]) -> None:
        """To the processes of a site whose command line is meant."""
        for process in self.wan.processes(site):
            with contextlib.suppress(OSError):  # it has ended
                if is_meant((Path("/proc") / str(process) / "cmdline").read_text().split("\0")):
                    os.kill(process, number)


@contextlib.contextmanager
def three_sites(name: str, seed: int, folder: Path, keys: Path) -> Generator[Run]:
    """The sites, training; Problem where they do not."""
    folder.mkdir()
    environment = site_environment(os.environ, keys)
    environment |= {"FOLDER": str(folder), "SEED": str(seed), "OMP_NUM_THREADS": "1", "PYTHONPATH": IMPORTS}
    with (
        (folder / "log.txt").open("w", encoding="utf-8") as log,
        WanRun(
            EmulatedWan.uniform(SITES, LINK),
            ["/bin/sh", "-c", START, sys.executable],
            environment=environment,
            keys=keys,
            keep_going=True,
            stdout=log,
            stderr=log,
        ) as wan,
    ):
        watches = {site: JournalWatch(folder / f"run-{site}") for site in SITES}
        run = Run(name, folder, wan, watches, {site: RankLog(folder / f"{site}.jsonl") for site in SITES})
        run.wait_full_rounds(3, 180, 0)
        run.began = time.monotonic()
        yield run
        run.ended = time.monotonic()
        (folder / "stop").touch()
        run.wan.wait(180)
        run.report = run.wan.report()
        run.look()
        for one in run.logs.values():
            one.refresh()


def tokens_of(run: Run) -> float:
    """That counted so far."""
    rounds = [one.entry for one in run.journal if isinstance(one.entry, Round)]
    fragments = 1 + max((one.fragment for one in rounds), default=0)
    return sum(listed.weight for one in rounds for listed in one.members) / fragments * BATCH * CONTEXT
