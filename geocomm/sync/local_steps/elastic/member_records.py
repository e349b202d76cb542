"""What the rounds of a rank in an elastic run go through, for `geocomm.round_log()`, until they are applied."""

from __future__ import annotations

import threading
from collections.abc import Callable

from geocomm.elastic.journal.entries import AnyRound, Listed, Skip
from geocomm.elastic.journal.mailed_frames import made_for
from geocomm.elastic.journal.messages import Open
from geocomm.sync.local_steps.outer.round_records import ROUNDS, RoundRecord


class MemberRecords:
    """Records of the rounds of the fragments that a rank owns. Thread-safe. What is said of other fragments' rounds
    changes nothing."""

    def __init__(self, site: str, is_past: Callable[[int, int], bool]) -> None:
        """site: the own one. is_past: whether a round (fragment, version) is applied or another rank's; called from any
        thread.
        """
        self._site, self._is_past = site, is_past
        self._lock = threading.Lock()
        self._records: dict[tuple[int, int], RoundRecord] = {}

    def of(self, fragment: int, version: int) -> RoundRecord:
        """Where another rank owns the fragment, or the round is applied, one that nobody reads."""
        with self._lock:
            if self._is_past(fragment, version):
                return RoundRecord.unread()
            key = fragment, version
            if key not in self._records:
                self._records[key] = ROUNDS.open(fragment, version, elastic=True)
            return self._records[key]

    def opened(self, opened: Open) -> None:
        """Sites with ranks are to send a frame."""
        others = (peer.site for peer, _ in made_for(opened, self._site) if peer.owners)
        self.of(opened.fragment, opened.version).awaits(others)

    def arrived(self, fragment: int, version: int, site: str, size: int | None = None) -> None:
        """The frame of another site is there. size: in bytes, where it is known."""
        if site != self._site:
            self.of(fragment, version).arrived(site, size)

    def decided(self, entry: AnyRound | Skip) -> None:
        """The journal says which frames count."""
        record = self.of(entry.fragment, entry.version)
        members = entry.members if isinstance(entry, AnyRound) else ()
        for one in members:
            if one.site != self._site and isinstance(one, Listed):
                record.describe(one.site, one.size, one.step, one.weight)
        record.listed(one.site for one in members)

    def applied(self, fragment: int, version: int, after: int) -> None:
        """A round is applied, and the fragment is at version `after`: what came before is past."""
        with self._lock:
            keys = [one for one in self._records if one[0] == fragment and one[1] < after]
            past = {key: self._records.pop(key) for key in keys}
        if record := past.get((fragment, version)):
            record.applied()
