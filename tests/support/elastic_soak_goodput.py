"""The goodput of the elastic soak: what part of the tokens that the sites could have trained on has counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from geocomm.elastic.journal.run_state import RunState
from support.elastic_soak_rank import BATCH, CONTEXT
from support.elastic_soak_run import KINDS, LEAST_GOODPUT, SITES, Fault, Run

FAILURE_EVERY_S = 1800.0
"""Of a site: for which the soak says what its failures would cost."""
LEAST_AT_RARE_FAILURES = 0.98


def least(every_s: float) -> float:
    """Wanted, of the time in which the machines are there, with a fault every `every_s`."""
    return LEAST_AT_RARE_FAILURES if every_s * len(SITES) >= FAILURE_EVERY_S else LEAST_GOODPUT


def mean_step_s(runs: Sequence[Run]) -> float:
    """Of runs that nothing disturbed."""
    seconds = sum(run.ended - run.began for run in runs) * len(SITES)
    return seconds / sum(len(_steps(run, run.began, run.ended)) for run in runs)


@dataclass(frozen=True)
class Goodput:
    """Steps, of which each has as many tokens as any other."""

    trained: int
    """By all sites, from the first to the last."""
    counted: float
    """Of those, as the journal says at its end."""
    made: int
    """While there were faults."""
    possible: float
    """In that time, had each site made one in every mean step of the undisturbed runs."""
    down: float
    """Of those, while a machine was off or stopped, as the fault wanted it."""
    at_rare_failures: float
    """The goodput where each site has one of these failures every FAILURE_EVERY_S."""

    @classmethod
    def of(cls, run: Run, step_s: float) -> Goodput:
        """Of a run with faults."""
        made, possible = len(_steps(run, run.began, run.ended)), len(SITES) * (run.ended - run.began) / step_s
        sites = RunState.of(one.entry for one in run.journal).sites.values()
        trained, counted = len(_steps(run, 0, float("inf"))), sum(site.taken for site in sites) / (BATCH * CONTEXT)
        failures = sum(max(1, len(fault.hit)) for fault in run.faults)
        lost_s = (possible - made + (trained - counted)) * step_s
        return cls(
            trained,
            counted,
            made,
            possible,
            sum(down_s(fault) for fault in run.faults) / step_s,
            1 - lost_s / max(1, failures) / FAILURE_EVERY_S,
        )

    @property
    def of_all(self) -> float:
        """Tokens counted / tokens trained, times steps made / steps without faults."""
        return self.counted / self.trained * self.made / self.possible

    @property
    def of_time_up(self) -> float:
        """The same, of the time in which the machines were there."""
        return self.counted / self.trained * self.made / (self.possible - self.down)


def down_s(fault: Fault) -> float:
    """Seconds in which the fault held machines down, of all of them together."""
    return 0.0 if fault.kind == "rank killed" else len(fault.hit) * (fault.over - fault.began)


def told(run: Run, step_s: float, every_s: float) -> list[str]:
    """For the report."""
    found = Goodput.of(run, step_s)
    of_kind: defaultdict[str, list[float]] = defaultdict(list)
    for fault in run.faults:
        window = fault.recovered - fault.began
        missing = len(SITES) * window - len(_steps(run, fault.began, fault.recovered)) * step_s
        of_kind[fault.kind].append(missing - down_s(fault))
    rows = [
        f"| {kind} | {sum(of_kind[kind]) / len(of_kind[kind]):.1f} | {max(of_kind[kind]):.1f} |"
        for kind in KINDS
        if of_kind[kind]
    ]
    return [
        "## Goodput",
        "",
        "Tokens that counted / tokens that were trained on, times steps made / steps that undisturbed sites make in "
        f"that time ({step_s * 1e3:.0f} ms each). Faults alone keep the machines off or stopped for "
        f"{100 * found.down / found.possible:.1f} % of the time.",
        "",
        "| | |",
        "|---|---:|",
        f"| tokens that counted / trained on | {100 * found.counted / found.trained:.1f} % |",
        f"| steps made / without faults | {100 * found.made / found.possible:.1f} % |",
        f"| **goodput**, a fault every {every_s:g} s | {100 * found.of_all:.1f} % |",
        f"| of the time in which the machines were there | {100 * found.of_time_up:.1f} % (wanted: "
        f"{100 * least(every_s):g} %) |",
        f"| computed, for such a failure of each site every {FAILURE_EVERY_S / 60:g} min | "
        f"{100 * found.at_rare_failures:.1f} % (wanted: {100 * LEAST_AT_RARE_FAILURES:g} %) |",
        "",
        "What a fault costs beside the time in which its machine is off or stopped, in seconds of one site:",
        "",
        "| fault | mean | longest |",
        "|---|---:|---:|",
        *rows,
    ]


def _steps(run: Run, begin: float, end: float) -> list[float]:
    """When those of all sites ended that did so between two times."""
    return [line["at"] for log in run.logs.values() for line in log.having("took") if begin < line["at"] < end]
