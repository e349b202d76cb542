"""What makes a run slow: which of its causes, taken away, would save most of a step.

Each cause is taken away in a replay of the last steps (`replay`), and named only where what was measured agrees with
it: waiting for a late site looks like a slow link at all others, and a link that is full loses packets too.
"""

from __future__ import annotations

import functools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from geocomm.core.units import count_text
from geocomm.observe.diagnosis.change import find_change
from geocomm.observe.diagnosis.link_causes import Judged, LinkCauses, egress_row, judge
from geocomm.observe.diagnosis.link_use import Place
from geocomm.observe.diagnosis.local_causes import LocalCauses
from geocomm.observe.diagnosis.replay import Replay, Without, waits
from geocomm.observe.diagnosis.run_window import RankWindow, RunWindow, Step
from geocomm.observe.diagnosis.stalls import find_stalls, own_seconds, without_steps
from geocomm.observe.diagnosis.verdict import (
    NAMED_FROM,
    SLOW_SCORE,
    TOLD_PARTS,
    Cause,
    ToldPart,
    Verdict,
    main_site,
    seconds_text,
)

_HIDDEN = 0.10
"""Where the program waits for less of a step, the network is none of its concerns."""
_LATE_STEPS = 0.7
"""A site that is clearly the last in fewer of the steps is not the straggler: steps are uneven."""
_LATE = 0.1
"""The share of a step: who is late by less is so for the sake of others, such as of messages that it waited for."""
_REPLAY_OFF = 0.15
"""Where the replay of the steps is off by a larger share, no cause is named."""
_FEWEST = 4
"""The least steps: of fewer nothing is said."""
_NOTHING_TO_WIN = "There is nothing to win between the sites."
_TELLING = "docs/how-to/tell-what-steps-wait-for.md"
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
            evidence = [*causes.rounds.evidence, *egress_row(self._window)]
            found = [Verdict(Cause.COMPUTE, "", 0.0, 0.0, evidence, _NOTHING_TO_WIN)]
        return Diagnosis(self._step, self._parts, found, [*self._notes()])


class _Examination(_Parts):
    """A window, and all that is asked of it."""

    def __init__(self, window: RunWindow) -> None:
        super().__init__(window)
        self._change = find_change(window)
        steady = window if self._change is None else self._change.after
        self._stalls = find_stalls(steady)
        self._replay = Replay(without_steps(steady, self._stalls.steps))
        self._steady = steady

    def diagnosis(self) -> Diagnosis:
        """All causes, the most costly first."""
        off = abs(self._replay.seen / self._replay.window.step_seconds - 1)
        links = LinkCauses(self._replay)
        judged = [*self._causes(links)] if off < _REPLAY_OFF else []
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
        return replace(verdict, share=verdict.saved_seconds / self._steady.step_seconds)

    def _with_rest(self, ranked: list[Verdict], judged: Sequence[Judged], links: LinkCauses) -> list[Verdict]:
        """The verdicts with what no cause explains: first where it is more than any cause, else last."""
        without = functools.reduce(Without.and_also, (one.explains for one in judged), Without())
        rest = self._replay.replayed(links.at_best(without)).waited + self._stalls.unexplained
        # What goes only with several causes at once is no cause's, such as delays that look like a full line one way.
        together = functools.reduce(Without.and_also, (one.without for one in judged), Without())
        alone = sum(one.verdict.saved_seconds for one in judged)
        only_together = self._replay.seen - self._replay.seconds(together) - alone
        rest += only_together if only_together > alone else 0.0
        step = self._steady.step_seconds
        if rest < _HIDDEN * step:
            return ranked
        share = rest / step
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
        if self._change is not None:
            yield (
                f"Since step {self._change.step} a step takes {seconds_text(self._change.after_s)}, before "
                f"{seconds_text(self._change.before_s)}. The causes are those of the steps since."
            )
        if off >= _REPLAY_OFF:
            yield f"The replay of these steps is {off:.0%} off what was measured, so no cause is named."

    def _healthy(self, off: float) -> Verdict:
        exposed = self._exposed / self._step
        under_way = self._under_way()
        evidence = [("waiting for other sites", f"{exposed:.0%} of a step")]
        if under_way is not None:
            evidence.append(("operations between sites under way", f"{under_way:.0%} of a step"))
        evidence += egress_row(self._window)
        if off >= _REPLAY_OFF or exposed >= _HIDDEN:
            return Verdict(
                Cause.UNKNOWN, "", 0.0, 0.0, evidence, "No single cause that is known here explains these waits."
            )
        fix = _NOTHING_TO_WIN
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

    def _causes(self, links: LinkCauses) -> Iterable[Judged]:
        for part in TOLD_PARTS:
            if self._parts[part.name]:
                yield self._told(part)
        straggler = [*self._straggler()]
        yield from straggler or self._uneven()
        yield from links.verdicts()

    def _told(self, part: ToldPart) -> Judged:
        by_site: dict[str, float] = {}
        for rank in self._window.ranks:
            took = statistics.fmean(getattr(step, part.name) or 0.0 for step in rank.steps) if rank.steps else 0.0
            by_site[rank.place[0]] = max(by_site.get(rank.place[0], 0.0), took)  # of the site's slowest rank
        return judge(
            self._replay,
            part.cause,
            main_site(by_site),
            Without(program=lambda rank, step, own: own - (getattr(step, part.name) or 0.0)),
            [(f"{part.what} at {site}", seconds_text(seconds)) for site, seconds in sorted(by_site.items())],
            part.fix,
        )

    def _straggler(self) -> Iterable[Judged]:
        own = self._own_seconds()
        sites = {place[0] for place in own}
        if len(sites) < 2 or not self._replay.messages:  # nobody waits for it
            return
        mean = {site: max(statistics.fmean(own[place]) for place in own if place[0] == site) for site in sites}
        slow = max(mean, key=lambda site: mean[site])
        others = max(seconds for site, seconds in mean.items() if site != slow)
        late, error = self._lateness(slow)
        count = self._window.step_count
        steps = [
            max(own[place][i] for place in own if place[0] == slow and i < len(own[place]))
            > max(own[place][i] for place in own if place[0] != slow and i < len(own[place])) / SLOW_SCORE
            or late.get(i, 0.0) > max(error, _LATE * self._step)
            for i in range(min(map(len, own.values())))
        ]
        share = sum(steps) / len(steps) if steps else 0.0
        if share < _LATE_STEPS or mean[slow] <= others:
            return
        evidence = [
            (f"a step of {slow} without its waits", seconds_text(mean[slow])),
            ("the slowest other site", seconds_text(others)),
            ("steps in which it was clearly the last", f"{share:.0%} of {count}"),
        ]
        if late:
            evidence.append(
                (
                    "it came later than the others by",
                    f"{seconds_text(statistics.median(late.values()))} ± {seconds_text(error)}",
                )
            )
        factor = others / mean[slow]
        yield judge(
            self._replay,
            Cause.STRAGGLER,
            slow,
            Without(program=lambda rank, step, own: own * factor if rank.place[0] == slow else own),
            evidence,
            f"Look at {slow}: geocomm doctor and py-spy there; or give it a smaller share of the batch.",
        )

    def _uneven(self) -> Iterable[Judged]:
        """Now one site is late, and then another."""
        own: dict[int, dict[str, float]] = defaultdict(dict)
        for rank in self._replay.window.ranks:
            site = rank.place[0]
            for step in rank.steps:
                own[step.number][site] = max(own[step.number].get(site, 0.0), own_seconds(rank, step))
        sites = {site for by_site in own.values() for site in by_site}
        if len(sites) < 2 or not self._replay.messages:
            return
        late = {number: {site: one - min(of.values()) for site, one in of.items()} for number, of in own.items()}

        def program(rank: RankWindow, step: Step, seconds: float) -> float:
            return seconds - late[step.number][rank.place[0]]

        last = Counter(max(by_site, key=lambda site: by_site[site]) for by_site in late.values())
        mean = statistics.fmean(max(by_site.values()) for by_site in late.values())
        yield judge(
            self._replay,
            Cause.UNEVEN,
            "",
            Without(program=program),
            [
                *((f"steps in which {site} was last", f"{last[site]} of {len(late)}") for site in sorted(sites)),
                ("it needed more than the first one", f"{seconds_text(mean)} in the mean"),
            ],
            "Give all sites equal work in each step, such as batches of as many tokens; or take local steps.",
        )

    def _own_seconds(self) -> dict[Place, list[float]]:
        """The time of each step of each rank that was no waiting for others."""
        return {
            rank.place: [own_seconds(rank, step) for step in rank.steps]
            for rank in self._replay.window.ranks
            if rank.steps
        }

    def _lateness(self, site: str) -> tuple[dict[int, float], float]:
        """By how much the site came last, by step, the most of its operations; and what is no evidence of it."""
        late: dict[int, float] = {}
        errors = [rank.clock_error for rank in self._window.ranks]
        if None in errors:
            return {}, 0.0
        links = [link for link in self._window.links if site in (link.source[0], link.target[0])]
        round_trips = [link.min_rtt_s for link in links]
        error = max((one for one in errors if one is not None), default=0.0) + max(round_trips, default=0.0) / 2
        for rank in self._window.ranks:
            if rank.place[0] != site:
                continue
            for operation in rank.operations:
                ranks = self._replay.operations(operation.key)
                others = [one.began for place, one in ranks.items() if place[0] != site]
                index = next((i for i, step in enumerate(rank.steps) if operation.issued < step.ended), None)
                if others and index is not None:
                    late[index] = max(late.get(index, float("-inf")), operation.began - max(others))
        return late, error


def _unknown(why: str) -> Verdict:
    return Verdict(Cause.UNKNOWN, "", 0.0, 0.0, [("reason", why)], "Let the run go on, and ask again.")
