"""What the leader asks of the run's data set, which it cannot read itself. All counts are sequences."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from geocomm.journal.run_state import RunState
from geocomm.journal.site_line import DealtShards


class RunData(Protocol):
    """The data set as it was read last: its newest version, and those that deals are of."""

    @property
    def number(self) -> int:
        """Of the newest version."""
        ...

    @property
    def sha256(self) -> str:
        """Of the file of the newest version."""
        ...

    def next_deal(self, state: RunState, site: str, speeds: Mapping[str, float]) -> tuple[str, int] | None:
        """Which shards of the version in force a site reads next, as in `dealt_shards`, and how many sequences they
        have; None: it may read none. speeds: tokens per second of all sites that are there."""
        ...

    def may_read(self, state: RunState, site: str, deal: DealtShards) -> bool:
        """Whether a site may read what was dealt, and the newest version still has it."""
        ...

    def readable(self, site: str) -> int:
        """Of one pass over what the site may read."""
        ...

    def undealt(self, state: RunState) -> int:
        """What is to be dealt until all was dealt as often as what was dealt most: the rest of a pass."""
        ...

    def waits(self, state: RunState, sites: Collection[str]) -> list[str]:
        """What none of these sites may read, and who may; and what is read too seldom; in words."""
        ...
