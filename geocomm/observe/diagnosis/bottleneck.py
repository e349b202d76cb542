"""What makes a run slow: which of its causes, taken away, would save most of a step.

Each cause is taken away in a replay of the last steps (`replay`), and named only where what was measured agrees with
it: waiting for a late site looks like a slow link at all others, and a link that is full loses packets too.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from geocomm.core.units import count_text
from geocomm.metrics.schema import MetricRow
from geocomm.observe.diagnosis.cpu_evidence import cpu_fix, cpu_rows
from geocomm.observe.diagnosis.link_causes import Judged, LinkCauses, egress_row
from geocomm.observe.diagnosis.local_causes import LocalCauses
from geocomm.observe.diagnosis.replay import Replay, Without, waits
from geocomm.observe.diagnosis.run_window import RunWindow, read_window
from geocomm.observe.diagnosis.site_causes import SiteCauses
from geocomm.observe.diagnosis.stalls import find_stalls, without_steps
from geocomm.observe.diagnosis.verdict import NAMED_FROM, TOLD_PARTS, Cause, Verdict

if TYPE_CHECKING:
    from geocomm.observe.telemetry.run_store import RunStore

_HIDDEN = 0.10
"""Where the program waits for less of a step, the network is none of its concerns."""
_REPLAY_OFF = 0.15
"""Where the replay of the steps is off by a larger share, no cause is named."""
_FEWEST = 4
"""The least steps: of fewer nothing is said."""
_NOTHING_TO_WIN = "There is nothing to win between the sites."
_TELLING = "docs/how-to/look-at-a-run.md#say-what-a-step-waits-for"
_CLEARLY_MORE = 1.1
"""By so much a cause must save more than one that is tested before it, to stand before it."""


@dataclass(frozen=True)
class Diagnosis:
    """What a window shows."""

    step_seconds: float
    parts: Mapping[str, float | None]
    """Seconds of a step: input, checkpoint, exposed and the rest, which is computation for the most part; None: the
    program does not tell."""
    verdicts: Sequence[Verdict]
    """The most costly first; one at least."""
    notes: Sequence[str]
    """What is missing or doubtful."""

    @property
    def verdict(self) -> Verdict:
        """The first."""
        return self.verdicts[0]


def diagnose(window: RunWindow) -> Diagnosis:
    """What the last steps of a run lost most time to."""
    if not window.ranks or window.step_seconds <= 0:
        return Diagnosis(0.0, {}, [_unknown("no steps and no operations were reported yet")], [])
    if window.steps_known and window.step_count < _FEWEST:
        return Diagnosis(window.step_seconds, {}, [_unknown(f"only {count_text(window.step_count, 'step')} known")], [])
    return (_LocalExamination if window.waited_by_site else _Examination)(window).diagnosis()


class _Parts:
    """What the steps of a window consist of, as far as the program tells."""

    def __init__(self, window: RunWindow) -> None:
        self._window = window
        self._step = window.step_seconds

    @cached_property
    def _parts(self) -> dict[str, float | None]:
        parts = {part.name: self._mean(part.name) for part in TOLD_PARTS}
        if self._window.waited_by_site:
            parts["rounds"] = statistics.fmean(self._window.waited_by_site.values())
        parts["exposed"] = self._exposed
        parts["computation and the rest"] = self._step - sum(seconds or 0.0 for seconds in parts.values())
        return parts

    @cached_property
    def _exposed(self) -> float:
        told = self._mean("exposed")
        waited = [waits(rank, step) for rank in self._window.ranks for step in rank.steps]
        return max(told or 0.0, statistics.fmean(waited) if waited else 0.0)

    def _mean(self, name: str) -> float | None:
        values: list[float | None] = [getattr(step, name) for rank in self._window.ranks for step in rank.steps]
        known = [value for value in values if value is not None]
        return sum(known) / len(values) if known else None

    def _notes(self) -> Iterable[str]:
        window = self._window
        if window.change is not None:
            yield window.change.told()
        if window.warm_up is not None:
            yield window.warm_up.told()
        if len(window.ranks) < window.of_ranks:
            yield f"PARTIAL: {len(window.ranks)} of {window.of_ranks} ranks report; what the others do is not known."
        if any(rank.clock_error is None for rank in window.ranks):
            yield "No link has measured the clocks of some ranks: who was late is not known there."
        if window.elastic and len({rank.place[0] for rank in window.ranks}) == 1:
            yield "An elastic run keeps at each site what this site reports: the others' steps are not known here."
        if window.lost:
            yield f"{window.lost} reports or operations were lost on their way here."
        if not window.steps_known:
            yield "The program tells of no steps (geocomm.report_step): all its operations count as one step."
        elif window.step_count < 10:
            yield f"Only {count_text(window.step_count, 'step')} known: let the run go on for a better verdict."
        if self._parts["input"] is None and window.steps_known:
            yield f"How long steps wait for data is not told: {_TELLING}"


class _LocalExamination(_Parts):
    """A window of local steps."""

    def diagnosis(self) -> Diagnosis:
        """All causes, the most costly first."""
        causes = LocalCauses(self._window)
        found = sorted((one for one in causes.verdicts() if one.share >= NAMED_FROM), key=lambda one: -one.share)
        if not found:
            evidence = [*causes.rounds.evidence, *egress_row(self._window), *cpu_rows(self._window)]
            fix = cpu_fix(self._window) + _NOTHING_TO_WIN
            found = [Verdict(Cause.COMPUTE, "", 0.0, 0.0, evidence, fix)]
        return Diagnosis(self._step, self._parts, found, [*self._notes()])


class _Examination(_Parts):
    """A window, and all that is asked of it."""

    def __init__(self, window: RunWindow) -> None:
        super().__init__(window)
        self._stalls = find_stalls(window)
        self._replay = Replay(without_steps(window, self._stalls.steps))

    def diagnosis(self) -> Diagnosis:
        """All causes, the most costly first."""
        off = abs(self._replay.seen / self._replay.window.step_seconds - 1)
        links = LinkCauses(self._replay)
        judged = [*SiteCauses(self._replay).verdicts(), *links.verdicts()] if off < _REPLAY_OFF else []
        found = [*self._stalls.verdicts, *(self._of_all(one.verdict) for one in judged)]
        ranked: list[Verdict] = []
        for verdict in found:  # in the order of the tests
            if verdict.share < NAMED_FROM:
                continue
            place = len(ranked)
            while place > 0 and verdict.saved_seconds > _CLEARLY_MORE * ranked[place - 1].saved_seconds:
                place -= 1
            ranked.insert(place, verdict)
        ranked = self._with_rest(ranked, judged, links) if off < _REPLAY_OFF else ranked
        if not ranked:
            ranked = [self._healthy(off)]
        return Diagnosis(self._step, self._parts, ranked, [*self._all_notes(off)])

    def _of_all(self, verdict: Verdict) -> Verdict:
        """The verdict with its share of the steps as they were, those that stalled included."""
        return replace(verdict, share=verdict.saved_seconds / self._step)

    def _with_rest(self, ranked: list[Verdict], judged: Sequence[Judged], links: LinkCauses) -> list[Verdict]:
        """The verdicts with what no cause explains: first where it is more than any cause, else last."""
        without = functools.reduce(Without.and_also, (one.explains for one in judged), Without())
        rest = self._replay.replayed(links.at_best(without)).waited + self._stalls.unexplained
        # What goes only with several causes at once is no cause's, such as delays that look like a full line one way.
        together = functools.reduce(Without.and_also, (one.without for one in judged), Without())
        alone = sum(one.verdict.saved_seconds for one in judged)
        only_together = self._replay.seen - self._replay.seconds(together) - alone
        rest += only_together if only_together > alone else 0.0
        if rest < _HIDDEN * self._step:
            return ranked
        share = rest / self._step
        evidence = [
            ("waiting for other sites", f"{self._exposed / self._step:.0%} of a step"),
            ("of that, with all known causes taken away", f"{share:.0%} of a step"),
        ]
        fix = "No cause that is known here explains this. geocomm trace shows these steps, operation by operation."
        text = f"Not known: {share:.0%} of a step is waiting that no known cause explains."
        unknown = Verdict(Cause.UNKNOWN, "", rest, share, evidence, fix, text=text)
        return [unknown, *ranked] if not ranked or ranked[0].saved_seconds < rest else [*ranked, unknown]

    def _all_notes(self, off: float) -> Iterable[str]:
        yield from self._notes()
        if off >= _REPLAY_OFF:
            yield f"The replay of these steps is {off:.0%} off what was measured, so no cause is named."

    def _healthy(self, off: float) -> Verdict:
        exposed = self._exposed / self._step
        under_way = self._under_way()
        evidence = [("waiting for other sites", f"{exposed:.0%} of a step")]
        if under_way is not None:
            evidence.append(("operations between sites under way", f"{under_way:.0%} of a step"))
        evidence += [*egress_row(self._window), *cpu_rows(self._window)]
        if off >= _REPLAY_OFF or exposed >= _HIDDEN:
            return Verdict(
                Cause.UNKNOWN, "", 0.0, 0.0, evidence, "No single cause that is known here explains these waits."
            )
        fix = cpu_fix(self._window) + _NOTHING_TO_WIN
        if under_way is not None and under_way > exposed + 0.3:
            fix += " If the program computes on GPUs: the waits of their streams are not seen here."
        return Verdict(Cause.COMPUTE, "", 0.0, 0.0, evidence, fix)

    def _under_way(self) -> float | None:
        shares: list[float] = []
        for rank in self._window.ranks:
            if not rank.operations or not rank.steps:
                continue
            covered, until = 0.0, rank.steps[0].began
            for operation in rank.operations:
                covered += max(0.0, operation.ended - max(operation.issued, until))
                until = max(until, operation.ended)
            shares.append(covered / (rank.steps[-1].ended - rank.steps[0].began))
        return min(1.0, statistics.fmean(shares)) if shares else None


def _unknown(why: str) -> Verdict:
    return Verdict(Cause.UNKNOWN, "", 0.0, 0.0, [("reason", why)], "Let the run go on, and ask again.")


_STEPS, _LEAST_STEPS = 50, 5
_MOST_MESSAGES = 20_000
"""The most messages of a window: the replays of more take seconds, so that fewer steps are looked at."""


class LiveDiagnosis:
    """The last diagnosis of a run. Another first cause is shown only when two windows agree on it, of which the second
    has at least half of its time after the first. Used by one thread at a time."""

    def __init__(self) -> None:
        self._steps = _STEPS
        self.shown: Diagnosis | None = None
        """What stands; None: nothing was looked at yet."""
        self._other: tuple[Cause, str] | None = None
        self._since = 0.0

    def look(self, store: RunStore) -> Diagnosis:
        """What stands now. Raises sqlite3.Error."""
        window = read_window(store, self._steps)
        messages = sum(len(operation.arrivals) for rank in window.ranks for operation in rank.operations)
        if messages > _MOST_MESSAGES and self._steps > _LEAST_STEPS:
            self._steps = max(_LEAST_STEPS, math.floor(self._steps * _MOST_MESSAGES / messages))
            window = read_window(store, self._steps)
        return self.after(window)

    def after(self, window: RunWindow) -> Diagnosis:
        """What stands after this window."""
        found = diagnose(window)
        if self.shown is not None and not window.over and _first(found) != _first(self.shown):
            if _first(found) != self._other:
                self._other, self._since = _first(found), window.last_heard
            new_s = window.last_heard - self._since
            if new_s == 0 or new_s < window.step_count * window.step_seconds / 2:
                return self.shown
        self.shown, self._other = found, None
        return found


def _first(found: Diagnosis) -> tuple[Cause, str]:
    return found.verdict.cause, found.verdict.where


def bottleneck_metric(found: Diagnosis) -> MetricRow:
    """The causes that were named, for Prometheus."""
    return MetricRow(
        "geocomm_bottleneck_seconds",
        "by how much a step would be shorter without this cause, of geocomm why",
        ("cause", "where"),
        [((str(one.cause), one.where), one.saved_seconds) for one in found.verdicts],
    )
