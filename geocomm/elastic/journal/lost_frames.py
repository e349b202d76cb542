"""Listed frames that sites have said to be lost, and which of them nobody can give away any more.

How long a frame is missed outlives a leader: sites keep how long they have looked, and say it. For a round that this
leader has closed its own clock counts alone, else a site could have each round made void at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from geocomm.core.records import Hash
from geocomm.elastic.journal.led_run import LedRun
from geocomm.elastic.journal.messages import Hold, Lost

_MOST_SAID = 10_000


@dataclass
class _Said:
    """What was said of a frame that is lost."""

    first: float
    """When, for the first time to this leader."""
    last: float
    missed_s: float = 0.0
    """The most that a site has looked for it under all leaders."""


class LostFrames:
    """A part of the `Sequencer`."""

    def __init__(self, run: LedRun) -> None:
        self._run = run
        self._said: dict[tuple[int, int, str, Hash], _Said] = {}
        """By fragment, version, site and frame."""
        self._begun_at = tuple(run.state.versions)
        """By fragment: rounds below this version are those of earlier leaders."""

    def told(self, name: str, lost: Lost) -> None:
        """A site lacks a frame that it cannot get, so it is at that version still."""
        run, applied = self._run, self._run.sites[name].applied
        applied[lost.fragment] = min(lost.version, applied.get(lost.fragment, 0))
        listed = run.state.rounds.get(lost.fragment)
        if listed is None or lost.version > listed.version:
            return
        is_last = lost.version == listed.version
        if is_last and (lost.site, lost.frame) not in [(one.site, one.frame) for one in listed.frames]:
            run.drop(name, f"it lacks a frame of {lost.site} in round {lost.version}, which lists none of that name")
            return
        key = (lost.fragment, lost.version, lost.site, lost.frame)
        if key not in self._said and len(self._said) >= _MOST_SAID:
            return  # it is said again
        said = self._said.setdefault(key, _Said(run.now, run.now))
        said.last, said.missed_s = run.now, max(said.missed_s, lost.missed_s)

    def held(self, hold: Hold) -> None:
        """A frame lies on some disk, or does no more."""
        if hold.held:
            self._said.pop((hold.fragment, hold.version, hold.site, hold.frame), None)

    def given_up(self) -> Iterator[tuple[int, int, str]]:
        """(fragment, version, why): rounds of frames that nobody has had for long. The caller skips each at once."""
        run, terms = self._run, self._run.terms
        self._said = {key: one for key, one in self._said.items() if run.now - one.last < terms.lost_said_s}
        for (fragment, version, site, frame), said in [*self._said.items()]:
            if (fragment, version) in run.state.skipped:
                continue
            missed_here = run.now - said.first >= terms.lost_s
            missed_before = said.missed_s >= terms.lost_s and self._is_earlier(fragment, version)
            if not (missed_here or (missed_before and self._all_told(fragment))):
                continue
            if any(run.sites[name].applied.get(fragment, 0) > version for name in run.state.live):
                continue  # It has the frame, or a state behind that round, and gives it away.
            yield fragment, version, f"nobody has frame {frame[:16]} of {site}"

    def _is_earlier(self, fragment: int, version: int) -> bool:
        return fragment < len(self._begun_at) and version < self._begun_at[fragment]

    def _all_told(self, fragment: int) -> bool:
        """Whether all that take part have said to this leader how far they are: any of them may have the frame."""
        return all(fragment in self._run.sites[name].applied for name in self._run.state.live)
