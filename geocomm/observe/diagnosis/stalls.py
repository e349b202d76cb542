"""Steps that took far longer than the others: pauses of a site, and outages of a line.

They are judged by the sum of what they cost, however few they are. What they explain is cut out of the window, so that
what is steady is judged by the other steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from geocomm.core.units import duration_text
from geocomm.observe.diagnosis.cpu_evidence import cpu_fix, cpu_rows
from geocomm.observe.diagnosis.replay import waits
from geocomm.observe.diagnosis.run_window import Operation, RankWindow, RunWindow, Step
from geocomm.observe.diagnosis.step_times import is_stall, usual_seconds
from geocomm.observe.diagnosis.verdict import NAMED_FROM, Cause, Verdict, seconds_text

_MOST = 0.7
"""What is in more of the steps is no pause: the site is slow."""
_OVERLAP = 0.3
"""The share of a step's delay that must lie in a stop or an outage to come from it."""
_ALL_SITES = "all sites"


@dataclass
class _Cost:
    """What one site, or one line, has cost."""

    steps: dict[int, float] = field(default_factory=dict[int, float])
    """By the step's number: seconds."""
    stopped: int = 0
    """How many of these steps were so that the process did not even report."""

    @property
    def seconds(self) -> float:
        """All together."""
        return sum(self.steps.values())


@dataclass(frozen=True)
class Stalls:
    """What was found."""

    verdicts: Sequence[Verdict]
    steps: frozenset[int]
    """The numbers of the steps that these explain."""
    unexplained: float
    """Seconds a step, the mean over all: of those steps, what their verdicts leave."""


def find_stalls(window: RunWindow) -> Stalls:
    """Pauses and outages that cost enough to be named."""
    mean = window.seconds_by_step()
    if len(mean) < 2:
        return Stalls([], frozenset(), 0.0)
    usual = usual_seconds(mean.values())
    delays = {number: seconds - usual for number, seconds in mean.items() if is_stall(seconds, usual)}
    outages = _outages(window, delays)
    pauses = _pauses(window, delays, taken={number for cost in outages.values() for number in cost.steps})
    total = sum(mean.values())
    found: list[Verdict] = []
    explained: dict[int, float] = defaultdict(float)
    for cause, costs in ((Cause.OUTAGE, outages), (Cause.PAUSES, pauses)):
        for where, cost in costs.items():
            if cost.seconds >= NAMED_FROM * total and (cause is Cause.OUTAGE or len(cost.steps) <= _MOST * len(mean)):
                found.append(_verdict(window, cause, where, cost, total))
                for number, seconds in cost.steps.items():
                    explained[number] += seconds
    rest = sum(max(0.0, delays.get(number, 0.0) - seconds) for number, seconds in explained.items())
    found.sort(key=lambda one: -one.saved_seconds)
    return Stalls(found, frozenset(explained), rest / len(mean))


def without_steps(window: RunWindow, numbers: frozenset[int]) -> RunWindow:
    """The window as if these steps had not been: what follows comes so much earlier."""
    if not numbers:
        return window
    took = window.seconds_by_step()
    cut = {number: took[number] for number in numbers}
    return replace(window, ranks=[_rank_without(rank, cut) for rank in window.ranks])


def _rank_without(rank: RankWindow, cut: Mapping[int, float]) -> RankWindow:
    earlier, steps = 0.0, list[Step]()
    spans: list[tuple[float, float | None]] = []  # until when, and how much earlier; None: it is cut
    for step in rank.steps:
        if step.number in cut:
            earlier += cut[step.number]
            spans.append((step.ended, None))
        else:
            steps.append(replace(step, began=step.began - earlier, ended=step.ended - earlier))
            spans.append((step.ended, earlier))
    operations: list[Operation] = []
    for operation in rank.operations:
        shift = next((shift for until, shift in spans if operation.issued < until), earlier)
        if shift is not None:
            operations.append(operation.moved(-shift))
    return replace(rank, steps=steps, operations=operations)


def _spans(window: RunWindow) -> dict[int, tuple[float, float]]:
    """From when to when each step was at any rank: others wait for one that has stopped in their next step, too."""
    found: dict[int, tuple[float, float]] = {}
    for rank in window.ranks:
        for step in rank.steps:
            began, ended = found.get(step.number, (step.began, step.ended))
            found[step.number] = min(began, step.began), max(ended, step.ended)
    return found


def own_seconds(rank: RankWindow, step: Step) -> float:
    """What a step needed for itself, of which the program tells no cause."""
    told = (step.input or 0.0) + (step.checkpoint or 0.0)
    return max(0.0, step.seconds - max(waits(rank, step), step.exposed or 0.0) - told)


def _pauses(window: RunWindow, delays: Mapping[int, float], taken: set[int]) -> dict[str, _Cost]:
    """By site, or all sites where they pause in the same steps."""
    above: dict[int, dict[str, float]] = defaultdict(dict)
    stopped: set[tuple[int, str]] = set()
    spans = _spans(window)
    for rank in window.ranks:
        site = rank.place[0]
        own = {step.number: own_seconds(rank, step) for step in rank.steps}
        usual = usual_seconds(own.values())
        for step in rank.steps:
            delay = delays.get(step.number, 0.0)
            if not delay or step.number in taken:
                continue
            extra = own[step.number] - usual if is_stall(own[step.number], usual) else 0.0
            silent = max((_common(spans[step.number], stop) for stop in rank.stops), default=0.0)
            if extra < _OVERLAP * delay and silent > _OVERLAP * delay:
                extra = min(delay, silent)
                stopped.add((step.number, site))
            if extra > 0:
                above[step.number][site] = max(above[step.number].get(site, 0.0), extra)
    costs: dict[str, _Cost] = defaultdict(_Cost)
    for number, by_site in above.items():
        worst = max(by_site, key=lambda site: by_site[site])
        common = sorted(by_site.values())[-2] if len(by_site) > 1 else 0.0
        alone = min(by_site[worst] - common, delays[number])
        if alone > 0:
            costs[worst].steps[number] = alone
            costs[worst].stopped += (number, worst) in stopped
        if common > 0:
            costs[_ALL_SITES].steps[number] = min(common, max(0.0, delays[number] - alone))
    return costs


def _outages(window: RunWindow, delays: Mapping[int, float]) -> dict[str, _Cost]:
    """By the two sites."""
    costs: dict[str, _Cost] = defaultdict(_Cost)
    for between in {outage.between for outage in window.outages}:
        times = _joined((one.began, one.ended) for one in window.outages if one.between == between)
        for rank in window.ranks:
            for step in rank.steps:
                delay = delays.get(step.number, 0.0)
                down = sum(_common((step.began, step.ended), time) for time in times)
                if delay and down > _OVERLAP * delay:
                    known = costs[between].steps
                    known[step.number] = min(delay, max(known.get(step.number, 0.0), down))
    return costs


def _joined(times: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without those that overlap."""
    found: list[tuple[float, float]] = []
    for began, ended in sorted(times):
        if found and began <= found[-1][1]:
            found[-1] = found[-1][0], max(ended, found[-1][1])
        else:
            found.append((began, ended))
    return found


def _common(one: tuple[float, float], other: tuple[float, float]) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def _verdict(window: RunWindow, cause: Cause, where: str, cost: _Cost, total: float) -> Verdict:
    count = len(window.seconds_by_step())
    saved, share = cost.seconds / count, cost.seconds / total
    each = cost.seconds / len(cost.steps)
    many = f"{len(cost.steps)} of {count} steps"
    if cause is Cause.OUTAGE:
        return Verdict(
            cause,
            where,
            saved,
            share,
            [("steps that waited for it", many), ("they took longer, all together, by", seconds_text(cost.seconds))],
            "The run continued by itself. geocomm top counts the outages of each link; ask the carrier.",
            text=f"Outage of {where}, {duration_text(cost.seconds)}: {share:.0%} of the time.",
        )
    evidence = [("steps that paused", many), ("each, in the mean", seconds_text(each))]
    if cost.stopped:
        evidence.append(("of these, the process did not even report in", str(cost.stopped)))
    site = "" if where == _ALL_SITES else where
    evidence += cpu_rows(window, site)
    return Verdict(
        cause,
        site,
        saved,
        share,
        evidence,
        f"{cpu_fix(window, site)}Look at {where}: what runs there now and then? Checkpoints, evaluation, other jobs, a "
        "disk, a stopped process. Tell checkpoints to geocomm.report_step, so that they have a name.",
        text=f"Pauses of {where}: {many}, {seconds_text(each)} each: {share:.0%} of the time.",
    )
