"""What a run of local steps loses, in tokens that it would have counted: each site trains at its own pace."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from geocomm.observe.diagnosis.cpu_evidence import cpu_fix, cpu_rows
from geocomm.observe.diagnosis.round_waits import judge_rounds
from geocomm.observe.diagnosis.run_window import RankWindow, RunWindow
from geocomm.observe.diagnosis.step_times import is_stall, usual_seconds
from geocomm.observe.diagnosis.verdict import SLOW_SCORE, TOLD_PARTS, Cause, Verdict, main_site, seconds_text

_SELDOM = 0.8
"""Rounds are too rare where there are fewer than this share of those that the settings ask for."""
_MISSED = 0.1
"""A site is named that was not in this share of a fragment's rounds, or more."""
_HALF = 0.5
"""A cause, or a site, that has most of something."""
_MOST_LOST = 1 - 1e-9


@dataclass(frozen=True)
class _Site:
    """The steps of a site's slowest rank. Seconds a step."""

    name: str
    step: float
    input: float
    checkpoint: float
    waited: float
    paused: float
    pauses: int
    """Steps that paused."""
    steps: int
    tokens: float
    """The tokens of all its ranks in a step; 1: the program does not tell them."""

    @property
    def calm(self) -> float:
        """A step without all that."""
        return max(1e-9, self.step - self.input - self.checkpoint - self.waited - self.paused)


class LocalCauses:
    """The causes of a window of local steps."""

    def __init__(self, window: RunWindow) -> None:
        self._window = window
        self._sites = _sites(window)
        self._word = "tokens" if any(site.tokens != 1.0 for site in self._sites) else "steps"

    def verdicts(self) -> Iterable[Verdict]:
        """In the order of the tests, also those that cost nothing."""
        yield from self._told()
        yield from self._pauses()
        yield from self._slow_site()
        yield self.rounds
        yield from self._line()
        yield from self._missed()

    @cached_property
    def rounds(self) -> Verdict:
        """What the steps lost to rounds, whatever that is."""
        return judge_rounds(self._window.rounds, self._window.waited_by_site, self._window.step_seconds)

    @property
    def _rate(self) -> float:
        return sum(site.tokens / site.step for site in self._sites)

    def _lost(self, without: Mapping[str, float]) -> float:
        """Share of what the run would count, if steps of these sites took these times instead."""
        more = sum(site.tokens / max(1e-9, without.get(site.name, site.step)) for site in self._sites)
        return min(_MOST_LOST, max(0.0, 1 - self._rate / more)) if more > 0 else 0.0

    def _verdict(
        self,
        cause: Cause,
        where: str,
        without: Mapping[str, float],
        evidence: list[tuple[str, str]],
        fix: str,
        what: str,
    ) -> Verdict:
        lost = self._lost(without)
        gain, it = lost / (1 - lost), "them" if cause is Cause.PAUSES else "it"
        text = f"{what}: without {it}, the run would count {gain:.0%} more {self._word}."
        return Verdict(cause, where, lost * self._window.step_seconds, lost, evidence, fix, text=text)

    def _told(self) -> Iterable[Verdict]:
        for part in TOLD_PARTS:
            by_site: dict[str, float] = {site.name: getattr(site, part.name) for site in self._sites}
            if not any(by_site.values()):
                continue
            where = main_site(by_site)
            yield self._verdict(
                part.cause,
                where,
                {site.name: site.step - by_site[site.name] for site in self._sites},
                [(f"{part.what} at {name}", f"{seconds_text(took)} a step") for name, took in by_site.items()],
                part.fix,
                f"{part.cause.capitalize()}{where and f', {where}'}",
            )

    def _pauses(self) -> Iterable[Verdict]:
        paused = [site for site in self._sites if site.paused]
        if not paused:
            return
        worst = max(paused, key=lambda site: self._lost({site.name: site.step - site.paused}))
        each = worst.paused * worst.steps / worst.pauses
        many = f"{worst.pauses} of {worst.steps} steps"
        yield self._verdict(
            Cause.PAUSES,
            worst.name,
            {worst.name: worst.step - worst.paused},
            [
                (f"steps of {worst.name} that paused", many),
                ("each, in the mean", seconds_text(each)),
                *cpu_rows(self._window, worst.name),
            ],
            f"{cpu_fix(self._window, worst.name)}Look at {worst.name}: what runs there now and then? Tell checkpoints "
            "to geocomm.report_step, so that they have a name.",
            f"Pauses of {worst.name}, {many}, {seconds_text(each)} each",
        )

    def _slow_site(self) -> Iterable[Verdict]:
        if len(self._sites) < 2:
            return
        slow = max(self._sites, key=lambda site: site.calm)
        others = max(site.calm for site in self._sites if site is not slow)
        if others > SLOW_SCORE * slow.calm:
            return
        yield self._verdict(
            Cause.STRAGGLER,
            slow.name,
            {slow.name: slow.step - slow.calm + others},
            [
                (f"a step of {slow.name} without its waits", seconds_text(slow.calm)),
                ("the slowest other site", seconds_text(others)),
                *cpu_rows(self._window, slow.name),
            ],
            f"{cpu_fix(self._window, slow.name)}Look at {slow.name}: geocomm doctor and py-spy there. If its hardware "
            "is slower, nothing is wrong: no other site waits for its steps.",
            f"Slow site, {slow.name}",
        )

    def _line(self) -> Iterable[Verdict]:
        pace, waits = self._window.pace, self._window.rounds
        if pace is None or not pace.every or pace.steps * _SELDOM <= pace.every or not waits:
            return
        waited = sum(wait.waited for wait in waits)
        for_sites = sum(wait.for_site or 0.0 for wait in waits)
        if for_sites > _HALF * waited:
            return
        lost = 1 - pace.every / pace.steps
        median = seconds_text(statistics.median(wait.waited for wait in waits))
        yield Verdict(
            Cause.LINE,
            "",
            0.0,
            lost,
            [
                ("steps between two rounds of a fragment, as asked for", str(pace.every)),
                ("as they were, in the median", f"{pace.steps:.0f}"),
                ("a round waited for the last frame", f"{median} in the median"),
            ],
            f"Take every={round(pace.steps / _SELDOM)} or more steps between two rounds, or a coarser codec: geocomm "
            "plan says what each would bring. No step waits; but what one site learns comes late to the others.",
            text=f"Line too slow for every={pace.every} with this codec: sites average every {pace.steps:.0f} steps.",
        )

    def _missed(self) -> Iterable[Verdict]:
        pace = self._window.pace
        if pace is None or not self._window.elastic:
            return
        site = max(pace.missed, key=lambda name: pace.missed[name][0] / pace.missed[name][1])
        missed, of_rounds = pace.missed[site]
        if missed < _MISSED * of_rounds:
            return
        own = sum(one.tokens / one.step for one in self._sites if one.name == site)
        lost = missed / of_rounds * (own / self._rate if own else 1 / len(pace.missed))
        yield Verdict(
            Cause.MISSED,
            site,
            0.0,
            lost,
            [("rounds that did not count it", f"{missed} of {of_rounds}")],
            f"It was away (geocomm log), or its frames came too late: see whether {site} is slow, or its line "
            "(geocomm top). What it trained then counts in its next frame, up to five cycles of it.",
            at_most=True,
            text=f"{missed} of {of_rounds} rounds missed {site}: at most {lost:.0%} of the run's {self._word} count "
            "later, or never.",
        )


def _sites(window: RunWindow) -> list[_Site]:
    found: dict[str, _Site] = {}
    tokens: dict[str, float] = {}
    for rank in window.ranks:
        if not rank.steps:
            continue
        site = _site(rank, window.waited_by_site.get(rank.place[0], 0.0))
        tokens[site.name] = tokens.get(site.name, 0.0) + statistics.fmean(step.tokens or 0 for step in rank.steps)
        if site.name not in found or found[site.name].step < site.step:
            found[site.name] = site
    counted = [window.tokens_by_site.get(name, 0.0) for name in found]
    known = window.tokens_by_site if all(counted) else tokens
    return [replace(site, tokens=known[name] or 1.0) for name, site in sorted(found.items())]


def _site(rank: RankWindow, waited: float) -> _Site:
    steps = rank.steps
    own = [step.seconds - (step.input or 0.0) - (step.checkpoint or 0.0) for step in steps]
    normal = usual_seconds(own)
    extra = [seconds - normal for seconds in own if is_stall(seconds, normal)]
    if sum(extra) < 2 * waited * len(steps):  # these are the waits for rounds
        extra = []
    return _Site(
        name=rank.place[0],
        step=statistics.fmean(step.seconds for step in steps),
        input=statistics.fmean(step.input or 0.0 for step in steps),
        checkpoint=statistics.fmean(step.checkpoint or 0.0 for step in steps),
        waited=waited,
        paused=sum(extra) / len(steps),
        pauses=len(extra),
        steps=len(steps),
        tokens=0.0,
    )
