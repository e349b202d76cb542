"""What the folder of a run store tells besides the reports: its disk, its collector, and members of an elastic run."""

from __future__ import annotations

import contextlib
import functools
import shutil
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.known_agents import about
from geocomm.elastic.journal.entries import BadLineError
from geocomm.elastic.journal.journal import NoJournalError, RunReader
from geocomm.elastic.journal.run_state import SiteRecord, Standing
from geocomm.metrics.own_counters import counters_in


@dataclass(frozen=True)
class StoreFolder:
    """The folder now."""

    free_bytes: int | None
    """The free bytes of the folder's disk, for this user."""
    size_bytes: int | None
    members: tuple[SiteRecord, ...] | None
    """By name; None: the run is not elastic."""
    collected_since: float = 0.0
    """When the last collector started, in Unix seconds: older reports are of a run before. 0: not known."""
    site: str = ""
    """Whose run folder it is, in an elastic run; empty: of none."""
    lacks_snapshot: bool = False
    """Fewer sites have the last snapshot of an elastic run than are to keep one, though several take part."""
    is_in_doubt: bool = False
    """Its site leads an elastic run, and may not be the only one, or not be the run's leader."""
    dealt_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    """By site of an elastic run that deals data: dealt to it, and not counted yet."""
    undealt_tokens: int | None = None
    """What this site, which leads such a run, is still to deal of the pass."""
    heard: tuple[str, ...] = ()
    """The sites whose agents the leader hears, as this site knows it that leads."""
    counters: Mapping[str, float] = field(default_factory=dict[str, float])
    """What the collector and the agent count of their own work (`metrics.own_counters`)."""

    @property
    def left_tokens(self) -> int | None:
        """Tokens that are left of the pass, dealt or not; None: it is not known here."""
        return None if self.undealt_tokens is None else self.undealt_tokens + sum(self.dealt_tokens.values())

    @property
    def repeated_tokens(self) -> int:
        """Tokens that were read again, as this site knows it that leads."""
        return int(self.counters.get("data_repeated_tokens", 0))

    @classmethod
    def look(cls, folder: Path) -> Self:
        """Read it. What cannot be read is None."""
        (members, lacks, dealt), started, said = _run(folder), 0.0, about(folder)
        with contextlib.suppress(OSError):
            started = RunDir(folder).collector_lock.stat().st_mtime
        free = size = None
        with contextlib.suppress(OSError):
            disk = shutil.disk_usage(folder)
            free, size = disk.free, disk.free + disk.used
        undealt, doubted = said.undealt_tokens if members else None, bool(said.doubt)
        counters = counters_in(folder)
        return cls(free, size, members, started, said.site, lacks, doubted, dealt, undealt, said.heard, counters)

    def has_left(self, site: str) -> bool:
        """Whether the site is no member any more."""
        gone = (Standing.LEFT, Standing.REMOVED)
        return any(member.name == site and member.standing in gone for member in self.members or ())


def _run(folder: Path) -> tuple[tuple[SiteRecord, ...] | None, bool, dict[str, int]]:
    """The members, whether they lack the last snapshot, and what was dealt to whom."""
    if not RunDir(folder).journal.is_file():
        return None, False, {}
    try:
        return _reader(folder).look(
            lambda run: (
                tuple(run.sites[name] for name in sorted(run.sites)),
                run.lacks_snapshot and len(run.live) > 1,
                {name: run.left_tokens(name) for name in sorted(run.sites)} if run.data else {},
            )
        )
    except (NoJournalError, BadLineError, sqlite3.Error):
        return None, False, {}


@functools.lru_cache(maxsize=8)
def _reader(folder: Path) -> RunReader:
    """It goes on from where it was: this is looked at every second."""
    return RunReader(RunDir(folder).journal)
