"""The snapshots of a run at its leader: when one is due, and from when on it is kept."""

from __future__ import annotations

import math

from geocomm.core.units import count_text
from geocomm.elastic.journal.entries import Digest, Kept, Snapshot
from geocomm.elastic.journal.led_run import LedRun
from geocomm.elastic.journal.messages import SnapshotHeld

KEPT_LIMIT_S = 120.0
"""A snapshot that too few sites have after this time is not kept, and a message says so."""


class LeaderSnapshots:
    """A part of the `Sequencer`. What sites have said of an earlier snapshot is of no weight."""

    def __init__(self, run: LedRun) -> None:
        self._run = run
        self._last_at = 0.0
        self._copies: dict[str, Digest] = {}
        """By site: of its manifest of the last snapshot."""
        self._tell_at = math.inf

    def begin(self) -> None:
        """The leader begins."""
        self._last_at = self._run.now

    def look(self) -> None:
        """Take a snapshot if one is due, and the run has changed since the last one."""
        state, last = self._run.state, self._run.state.snapshot
        due = 0 < self._run.terms.snapshot_s <= max(self._run.now - self._last_at, self._since_last_s())
        takes = due and state.live and any(state.versions) and (last is None or last.versions != tuple(state.versions))
        if last is not None and state.lacks_snapshot and (takes or self._run.now >= self._tell_at):
            self._tell_at = math.inf
            self._run.log(self._missed(last))
        if takes:
            self._last_at = self._run.now
            self._tell_at = self._run.now + KEPT_LIMIT_S
            self._copies = {}
            self._run.append(Snapshot, versions=tuple(state.versions), state=state.digest)

    def _since_last_s(self) -> float:
        """How long ago the last snapshot was, by the rounds since then."""
        snapshot = self._run.state.snapshot
        return self._run.seconds_of(sum(self._run.state.versions) - (0 if snapshot is None else sum(snapshot.versions)))

    def _missed(self, last: Snapshot) -> str:
        have, lack = sorted(self._copies), [name for name in self._run.state.live if name not in self._copies]
        return (
            f"snapshot {last.index} is not kept yet: {count_text(self._run.terms.copies, 'site')} have to have it. "
            f"{', '.join(have) or 'None'} has it, {', '.join(lack) or 'no other live site'} lacks it; the log there "
            "says why"
        )

    def held(self, name: str, held: SnapshotHeld) -> None:
        """A site has the snapshot: it is kept once enough have equal bits."""
        state, last = self._run.state, self._run.state.snapshot
        if last is None or held.snapshot != last.index or last.index in state.kept:
            return
        self._copies[name] = held.digest
        same = tuple(site for site, digest in sorted(self._copies.items()) if digest == held.digest)
        if len(same) < len(self._copies):
            others = sorted(self._copies.keys() - set(same))
            self._run.log(f"snapshot {held.snapshot}: {', '.join(same)} has other bits than {', '.join(others)}")
        if len(same) >= self._run.terms.copies:
            self._run.append(Kept, snapshot=held.snapshot, digest=held.digest, sites=same)
