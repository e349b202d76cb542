"""What sites cost a run: waits for data, checkpoints, and sites that are late."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable

from geocomm.observe.diagnosis.cpu_evidence import cpu_fix, cpu_rows
from geocomm.observe.diagnosis.link_causes import Judged, judge
from geocomm.observe.diagnosis.link_use import Place
from geocomm.observe.diagnosis.replay import Replay, Without
from geocomm.observe.diagnosis.run_window import RankWindow, Step
from geocomm.observe.diagnosis.stalls import own_seconds
from geocomm.observe.diagnosis.verdict import SLOW_SCORE, TOLD_PARTS, Cause, ToldPart, main_site, seconds_text

_LATE_STEPS = 0.7
"""A site that is clearly the last in fewer of the steps is not the straggler: steps are uneven."""
_LATE = 0.1
"""The share of a step: who is late by less is so for the sake of others, such as of messages that it waited for."""


class SiteCauses:
    """Causes within the sites. All that is looked at is of the replay's window: times of the run as it was, from which
    nothing was cut, are on another clock."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._window = replay.window

    def verdicts(self) -> Iterable[Judged]:
        """In the order of the tests, also those that cost nothing."""
        for part in TOLD_PARTS:
            if any(getattr(step, part.name) for rank in self._window.ranks for step in rank.steps):
                yield self._told(part)
        straggler = [*self._straggler()]
        yield from straggler or self._uneven()

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
            or late.get(i, 0.0) > max(error, _LATE * self._window.step_seconds)
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
        evidence += cpu_rows(self._window, slow)
        factor = others / mean[slow]
        yield judge(
            self._replay,
            Cause.STRAGGLER,
            slow,
            Without(program=lambda rank, step, own: own * factor if rank.place[0] == slow else own),
            evidence,
            f"{cpu_fix(self._window, slow)}Look at {slow}: geocomm doctor and py-spy there; or give it a smaller share "
            "of the batch.",
        )

    def _uneven(self) -> Iterable[Judged]:
        """Now one site is late, and then another."""
        own: dict[int, dict[str, float]] = defaultdict(dict)
        for rank in self._window.ranks:
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
                *cpu_rows(self._window),
            ],
            "Give all sites equal work in each step, such as batches of as many tokens; or take local steps.",
        )

    def _own_seconds(self) -> dict[Place, list[float]]:
        """The time of each step of each rank that was no waiting for others."""
        return {
            rank.place: [own_seconds(rank, step) for step in rank.steps] for rank in self._window.ranks if rank.steps
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
