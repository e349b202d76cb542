"""When the ranks of a site start again, and when that comes to nothing.

Ranks that the run ends, since what they have is void, say so in a file of the run folder. It ends them for what the
start after that mends: such an end is no sign of a fault of theirs.
"""

from __future__ import annotations

import contextlib

from geocomm.core.patience import pauses
from geocomm.core.run_dir import RunDir

LONGEST_PAUSE_S = 60.0
_FIRST_PAUSE_S = 1.0
MOST_FRUITLESS_STARTS = 5
"""Starts that end by themselves, without one frame that counted: something is wrong that another does not mend."""


def say_ended_by_run(files: RunDir, why: str) -> None:
    """The ranks end, for others in their place are to go on with what the run has."""
    with contextlib.suppress(OSError):  # they end all the same, and count as such that fail
        files.ranks_ended_by_run.write_text(why)


class RankStarts:
    """Those of one site, counted by who starts its ranks."""

    def __init__(self, files: RunDir) -> None:
        self._said = files.ranks_ended_by_run
        self._counted, self.fruitless = 0, 0
        self._pauses = pauses(_FIRST_PAUSE_S, LONGEST_PAUSE_S)

    def begins(self, counted: int) -> None:
        """A start. counted: the rounds that listed a frame of the site."""
        with contextlib.suppress(OSError):
            self._said.unlink(missing_ok=True)
        self._counted = counted

    def ended(self, counted: int) -> float | None:
        """How long to wait for the next one, in seconds; None: the site gives up."""
        if counted > self._counted:
            self.fruitless, self._pauses = 0, pauses(_FIRST_PAUSE_S, LONGEST_PAUSE_S)
            return 0.0
        if not self._said.exists():
            self.fruitless += 1
        return None if self.fruitless >= MOST_FRUITLESS_STARTS else next(self._pauses)
