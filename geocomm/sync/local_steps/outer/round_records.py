"""What the last rounds of local steps of this process went through, and when; also those that are under way."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from geocomm.metrics import sources

_KEPT = 1024


@dataclass
class _PeerRecord:
    """What another site sends."""

    site: str
    announced_ns: int | None = None
    arrived_ns: int | None = None
    bytes: int | None = None
    step: int | None = None
    weight: int | None = None


@dataclass(eq=False)
class RoundRecord:
    """One round at the rank that owns its fragment: a row of `geocomm.round_log()`, which says what each field is.

    Thread-safe. Of what happens again, in a later attempt, the last time is kept.
    """

    lock: threading.Lock
    """Held while a field is read or changed."""
    number: int
    elastic: bool
    fragment: int
    round: int
    last: bool = False
    attempts: int = 0
    step: int | None = None
    weight: int | None = None
    bytes: int | None = None
    due_ns: int | None = None
    begun_ns: int | None = None
    stored_ns: int | None = None
    offered_ns: int | None = None
    listed_ns: int | None = None
    averaged_ns: int | None = None
    applied_ns: int | None = None
    coding_ns: int = 0
    counted: list[str] | None = None
    failed: bool = False
    peers: dict[str, _PeerRecord] = field(default_factory=dict[str, _PeerRecord])

    @classmethod
    def unread(cls) -> RoundRecord:
        """One that is in no log."""
        return cls(threading.Lock(), number=0, elastic=True, fragment=0, round=0)

    def row(self) -> dict[str, Any]:
        """What is known by now."""
        with self.lock:
            peers = [dict(vars(peer)) for peer in self.peers.values()]
            found = {**vars(self), "last_arrived": self._last_arrived(), "peers": peers}
        del found["lock"]
        return found

    def _last_arrived(self) -> str | None:
        """The other site whose frame came last, once all that count are there."""
        if self.listed_ns is None:
            return None
        needed = list(self.peers.values())
        if self.elastic and self.counted is not None:
            needed = [peer for peer in needed if peer.site in self.counted]
        arrived = [(peer.arrived_ns, peer.site) for peer in needed if peer.arrived_ns is not None]
        if len(arrived) < len(needed):
            return None
        return max(arrived, default=(0, None))[1]

    def due(self) -> None:
        """The site's schedule says so; the first time counts."""
        now = time.monotonic_ns()
        with self.lock:
            self.due_ns = self.due_ns or now

    def begun(self, step: int, weight: int, *, last: bool = False) -> None:
        """The delta was taken."""
        with self.lock:
            self.attempts += 1
        self._set("begun_ns", step=step, weight=weight, last=last)

    def stored(self) -> None:
        """The own frame lies on disk."""
        self._set("stored_ns")

    def offered(self, size: int) -> None:
        """The own frame, which has this many bytes, is given to the network."""
        self._set("offered_ns", bytes=size)

    def awaits(self, sites: Iterable[str]) -> None:
        """These sites are to send a frame."""
        with self.lock:
            for site in sites:
                self._peer(site)

    def announced(self, site: str, size: int, step: int, weight: int) -> None:
        """A site has said what its frame will be."""
        now = time.monotonic_ns()
        with self.lock:
            self._peer(site).announced_ns = now
        self.describe(site, size, step, weight)

    def arrived(self, site: str, size: int | None = None) -> None:
        """The frame of a site is there. Once the average is computed, nobody waits for one that comes again."""
        now = time.monotonic_ns()
        with self.lock:
            if self.averaged_ns is not None:
                return
            peer = self._peer(site)
            peer.arrived_ns, peer.bytes = now, peer.bytes if size is None else size

    def listed(self, counted: Iterable[str]) -> None:
        """It is decided which sites count."""
        self._set("listed_ns", counted=list(counted))

    def describe(self, site: str, size: int, step: int, weight: int) -> None:
        """What is known of a site's frame by the decision; not of this site."""
        with self.lock:
            peer = self._peer(site)
            peer.bytes, peer.step, peer.weight = size, step, weight

    @contextmanager
    def coding(self) -> Generator[None]:
        """Within, the own frame is made, or all are decoded and averaged."""
        began = time.monotonic_ns()
        yield
        took = time.monotonic_ns() - began
        with self.lock:
            self.coding_ns += took

    def averaged(self) -> None:
        """The average is computed."""
        self._set("averaged_ns")

    def applied(self) -> None:
        """The outer step is taken."""
        self._set("applied_ns")

    def fail(self) -> None:
        """It ended with an error."""
        with self.lock:
            self.failed = True

    def _set(self, moment: str, **fields: Any) -> None:
        """Note that a moment is now, and what is known by it."""
        now = time.monotonic_ns()
        with self.lock:
            vars(self).update(fields, **{moment: now})

    def _peer(self, site: str) -> _PeerRecord:
        return self.peers.setdefault(site, _PeerRecord(site))


class RoundLog:
    """The last rounds. Thread-safe."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew, as in a forked child: another thread may have had the lock."""
        self._lock = threading.Lock()
        self._number = 0
        self._kept: deque[RoundRecord] = deque(maxlen=_KEPT)

    def open(self, fragment: int, number: int, *, elastic: bool) -> RoundRecord:
        """Begin a record. number: of the round, or the version of the fragment that it begins with."""
        with self._lock:
            self._number += 1
            record = RoundRecord(self._lock, self._number, elastic, fragment, number)
            self._kept.append(record)
        return record

    def read(self, after: int) -> list[dict[str, Any]]:
        """The rows with a number above `after`, oldest first."""
        with self._lock:
            kept = [record for record in self._kept if record.number > after]
        return [record.row() for record in kept]


ROUNDS = RoundLog()
os.register_at_fork(after_in_child=ROUNDS.clear)
sources.register("rounds", lambda: ROUNDS.read)
