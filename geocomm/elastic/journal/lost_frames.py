"""Listed frames that sites have said to be lost, and which of them nobody can give away any more."""

from __future__ import annotations

from collections.abc import Iterator

from geocomm.core.records import Hash
from geocomm.elastic.journal.led_run import LedRun
from geocomm.elastic.journal.messages import Hold, Lost

_MOST_SAID = 10_000


class LostFrames:
    """A part of the `Sequencer`."""

    def __init__(self, run: LedRun) -> None:
        self._run = run
        self._said: dict[tuple[int, int, str, Hash], tuple[float, float]] = {}
        """By fragment, version, site and frame: when it was first said, and when last."""

    def told(self, name: str, lost: Lost) -> None:
        """A site lacks a frame that it cannot get, so it is at that version still."""
        run, applied = self._run, self._run.sites[name].applied
        applied[lost.fragment] = min(lost.version, applied.get(lost.fragment, 0))
        listed = run.state.rounds.get(lost.fragment)
        if listed is None or lost.version > listed.version:
            return
        is_last = lost.version == listed.version
        if is_last and (lost.site, lost.frame) not in [(one.site, one.frame) for one in listed.members]:
            run.drop(name, f"it lacks a frame of {lost.site} in round {lost.version}, which lists none of that name")
            return
        key = (lost.fragment, lost.version, lost.site, lost.frame)
        if key not in self._said and len(self._said) >= _MOST_SAID:
            return  # it is said again
        first, _ = self._said.get(key, (run.now, run.now))
        self._said[key] = (first, run.now)

    def held(self, hold: Hold) -> None:
        """A frame lies on some disk."""
        self._said.pop((hold.fragment, hold.version, hold.site, hold.frame), None)

    def given_up(self) -> Iterator[tuple[int, int, str]]:
        """(fragment, version, why): rounds of frames that nobody has had for long. The caller skips each at once."""
        run, terms = self._run, self._run.terms
        self._said = {key: one for key, one in self._said.items() if run.now - one[1] < terms.lost_said_s}
        for (fragment, version, site, frame), (first, _) in [*self._said.items()]:
            if run.now - first < terms.lost_s or (fragment, version) in run.state.skipped:
                continue
            if any(run.sites[name].applied.get(fragment, 0) > version for name in run.state.live):
                continue  # It has the frame, or a state behind that round, and gives it away.
            yield fragment, version, f"nobody has frame {frame[:16]} of {site}"
