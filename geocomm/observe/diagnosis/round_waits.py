"""Rounds of local steps: for whom they wait, and what that costs the steps, which is nothing as a rule."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from geocomm.observe.diagnosis.verdict import Cause, Verdict, seconds_text


@dataclass(frozen=True)
class RoundWait:
    """Whom one site's round waited for, after its own frame was given to the network. Seconds."""

    site: str
    last: str
    """The site whose frame came last."""
    waited: float
    """Until that frame was there, from when those of all other sites were; 0: it came before the own one."""
    for_site: float | None
    """The part of that until the other site announced its frame; None: elastic rounds do not tell."""


def round_waits(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[RoundWait]:
    """Waits of the rounds whose frames are all there. rows: of `geocomm.round_log()`, each with its site."""
    waits: list[RoundWait] = []
    for site, row in rows:
        offered, last = row["offered_ns"], row["last_arrived"]
        peer = next((peer for peer in row["peers"] if peer["site"] == last), None)
        if row["failed"] or offered is None or peer is None or peer["arrived_ns"] is None:
            continue
        announced, others = peer["announced_ns"], [one["arrived_ns"] for one in row["peers"] if one is not peer]
        since = max([offered, *(at for at in others if at is not None)])
        waited = max(0, peer["arrived_ns"] - since)
        for_site = None if announced is None else min(waited, max(0, announced - since)) / 1e9
        waits.append(RoundWait(site, last, waited / 1e9, for_site))
    return waits


@dataclass(frozen=True)
class RoundPace:
    """How often there were rounds, and for whom."""

    every: int
    """Steps between two rounds of a fragment, as the settings say."""
    steps: float
    """The same as it was, the median of the sites and fragments; 0: not known."""
    rounds: int
    """That are over."""
    missed: Mapping[str, tuple[int, int]]
    """By site: of the rounds from its first to its last, how many did not count it; and how many these are."""


def round_pace(rows: Iterable[tuple[str, Mapping[str, Any]]], every: int) -> RoundPace | None:
    """How rounds follow each other. rows: of `geocomm.round_log()`, each with its site. None: no round is over."""
    told: dict[tuple[int, int], Sequence[str]] = {}
    steps: dict[tuple[str, int], list[int]] = defaultdict(list)
    for site, row in rows:
        if row["failed"] or row.get("last") or not row.get("counted") or row.get("applied_ns") is None:
            continue
        told[row["fragment"], row["round"]] = row["counted"]
        if row.get("step") is not None and site in row["counted"]:
            steps[site, row["fragment"]].append(row["step"])
    if not told:
        return None
    between = [later - one for own in steps.values() for one, later in itertools.pairwise(own) if later > one]
    counted = [told[key] for key in sorted(told, key=lambda key: (key[1], key[0]))]
    missed: dict[str, tuple[int, int]] = {}
    for site in sorted({site for sites in counted for site in sites}):
        there = [i for i, sites in enumerate(counted) if site in sites]
        while_there = there[-1] - there[0] + 1
        missed[site] = while_there - len(there), while_there
    return RoundPace(every, statistics.median(between) if between else 0.0, len(told), missed)


def judge_rounds(waits: Sequence[RoundWait], waited_by_site: Mapping[str, float], step_seconds: float) -> Verdict:
    """What the steps lost to rounds; the cause is named whatever it costs.

    waited_by_site: seconds a step for which each site's steps stood still for a result."""
    cost = max(waited_by_site.values(), default=0.0)
    by_last: dict[str, list[RoundWait]] = defaultdict(list)
    for wait in waits:
        by_last[wait.last].append(wait)
    evidence = [(f"steps of {site} stood still", f"{seconds_text(s)} a step") for site, s in waited_by_site.items()]
    where, fix = "", "Take more steps between two rounds (every), or a coarser codec."
    if by_last:
        where = max(by_last, key=lambda site: sum(wait.waited for wait in by_last[site]))
        mine = by_last[where]
        evidence += [
            (f"rounds whose last frame was that of {where}", f"{len(mine)} of {len(waits)}"),
            (
                "they waited for it alone",
                seconds_text(statistics.median(wait.waited for wait in mine)) + " in the median",
            ),
        ]
        known = [(wait.for_site, wait.waited) for wait in mine if wait.for_site is not None]
        if known:
            site_s, all_s = sum(one for one, _ in known), sum(one for _, one in known)
            evidence.append(("of that for the site, not for the line", f"{site_s / all_s:.0%}" if all_s else "none"))
            if site_s > all_s / 2:
                fix = f"Look at {where}: its steps are slower than the others'. Or take more steps between two rounds."
        else:
            evidence.append(("whether for the site or for the line", "not known in elastic runs"))
    return Verdict(Cause.ROUNDS, where, cost, cost / step_seconds if step_seconds else 0.0, evidence, fix)
