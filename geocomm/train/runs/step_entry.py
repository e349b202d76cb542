"""The entry of a step in metrics.jsonl, made from what each site counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WAITS = ("input_seconds", "checkpoint_seconds")
"""What a rank waits for besides other sites, whatever the backend."""


@dataclass(frozen=True)
class RunFacts:
    """What is the same in the entries of all steps of a run."""

    site: str
    """The site of the rank that writes."""
    ranks_of_site: Mapping[str, int]
    tokens_per_rank: int
    """How many tokens a rank trains on in one step."""
    backend: str
    codec: str | None
    """The codec of traffic between sites; None where the backend has none."""
    counters: Sequence[str]
    """Names of the whole numbers that a site counts."""
    times: Sequence[str]
    """Names of the seconds that a rank counts."""
    counts: bool
    """Whether the backend has counters; else they are None in the entries."""

    @property
    def ranks(self) -> int:
        """How many ranks train together."""
        return sum(self.ranks_of_site.values())


def step_entry(
    run: RunFacts, step: Mapping[str, Any], own_seconds: float, rows: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """`step`, what this rank knows of it, with times, speeds and counters, in total and by site.

    own_seconds: that the step took here; rows: by site, sums over its ranks of step_seconds, `WAITS`, counters and
    times.
    """
    sites = {
        site: _counted(run, row, run.ranks_of_site[site], run.tokens_per_rank * run.ranks_of_site[site])
        for site, row in rows.items()
    }
    tokens = run.tokens_per_rank * run.ranks
    times = {name: sum(row[name] for row in rows.values()) / run.ranks for name in (*WAITS, *run.times)}
    return {
        **step,
        "step_seconds": own_seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / own_seconds,
        **{name: times[name] for name in WAITS},
        **{name: sum(site[name] for site in sites.values()) if run.counts else None for name in run.counters},
        **{name: times[name] if run.counts else None for name in run.times},
        "site": run.site,
        "codec": run.codec,
        "backend": run.backend,
        "sites": sites,
    }


def sites_entry(
    run: RunFacts,
    ranks_of_site: Mapping[str, int],
    tokens_of_site: Mapping[str, int],
    rows: Mapping[str, Mapping[str, float]],
) -> dict[str, Any] | None:
    """Where all sites of a run with local steps stand; None where none has done a step since it last told.

    tokens_of_site: that a site trains on in one step. rows: by site, `step`, `loss`, counters of rounds, and the sums
    over its `steps` since it last told and over its ranks of step_seconds, `WAITS`, counters and times.
    """
    sites = {}
    for site, row in rows.items():
        if row["steps"]:
            steps = int(row["steps"])
            sites[site] = {
                "step": int(row["step"]),
                "steps": steps,
                "loss": row["loss"],
                "rounds": int(row["rounds"]),
                "held_back": int(row["held_back"]),
                "rounds_not_finite": int(row["rounds_not_finite"]),
                **_counted(run, row, ranks_of_site[site], tokens_of_site[site] * steps, steps),
            }
    if not sites:
        return None
    return {
        "step": max(site["step"] for site in sites.values()),
        "tokens_per_second": sum(site["tokens_per_second"] for site in sites.values()),
        "sites": sites,
    }


def _counted(run: RunFacts, row: Mapping[str, float], ranks: int, tokens: int, steps: int = 1) -> dict[str, Any]:
    """What a site has counted in these steps, which trained on these tokens."""
    seconds = row["step_seconds"] / ranks
    return {
        "ranks": ranks,
        "tokens": tokens,
        "step_seconds": seconds / steps,
        "tokens_per_second": tokens / seconds,
        **{name: row[name] / ranks for name in WAITS},
        **{name: int(row[name]) if run.counts else None for name in run.counters},
        **{name: row[name] / ranks if run.counts else None for name in run.times},
    }
