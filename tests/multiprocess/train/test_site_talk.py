"""Sites of unequal speed come together after the same step, whichever rank asks for it, and whenever."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("deepspeed")

import torch
import torch.distributed as dist

from support.harness import Ranks, ranks_fixture

STEPS = 90
MEETS_EVERY = 40

ranks = ranks_fixture({"2+1": ["a", "a", "b"], "1+1+1": list("abc")}, environment={"DS_ACCELERATOR": "cpu"})


def _train(sites: list[str], asks: dict[int, tuple[int, str]], slow: str, lockstep: bool) -> list[tuple[int, str]]:
    """The steps after which all came together, with what was asked for; asks: by rank, at which step and for what."""
    from geocomm.train.comm_meter import ROW, Wants
    from geocomm.train.site_groups import SiteGroups
    from geocomm.train.site_talk import SiteTalk

    site = sites[dist.get_rank()]
    counters = dict.fromkeys(("rounds", "held_back", "rounds_not_finite"), 0)
    local: Any = SimpleNamespace(sites=SiteGroups(), in_lockstep=lockstep, summary=lambda: counters)
    talk = SiteTalk(local, site, torch.device("cpu"))
    pace = random.Random(f"{site} {asks} {slow}")
    when, what = asks.get(dist.get_rank(), (0, ""))
    met = []
    for step in range(1, STEPS + 1):
        time.sleep(pace.uniform(0, 0.006 if site == slow else 0.001))
        due = step % MEETS_EVERY == 0 or step == STEPS
        asked = step == when if what == "save" else 0 < when <= step
        wants = Wants(**{what: True}) if asked else Wants()
        row = [0.5 if step > 1 else 0.0, *[0.0] * (len(ROW) - 1)]
        totals = talk.launch(step, torch.tensor(float(dist.get_rank())), row, wants).finish(meets=due)
        if totals.wants or due:
            met.append((step, str(totals.wants)))
            dist.barrier()  # as a checkpoint, where nobody comes to an exchange any more
        if totals.wants.stop:
            break
    talk.flush([0.5, *[0.0] * (len(ROW) - 1)], Wants())
    if local.sites.is_first:
        reports = [report.sites[site] for report in talk.take_reports()]
        assert [row["step"] for row in reports] == sorted(row["step"] for row in reports)
        assert reports[-1]["step"] <= met[-1][0]
        assert all(row["step_seconds"] == 0.5 * row["steps"] * len(local.sites.ranks) for row in reports)
    return met


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        ({}, [(40, ""), (80, ""), (90, "")]),
        ({2: (17, "stop")}, ["stop"]),
        ({1: (38, "stop")}, ["stop"]),
        ({0: (3, "save"), 2: (60, "stop")}, ["save", "stop"]),
        ({0: (39, "save"), 1: (40, "save"), 2: (41, "save")}, ["save"]),
        ({0: (89, "failed"), 2: (90, "stop")}, []),
    ],
)
@pytest.mark.parametrize("slow", ["a", "b"])
def test_sites_come_together_after_the_same_step(
    ranks: Ranks, asks: dict[int, tuple[int, str]], expected: list[Any], slow: str, lockstep: bool
) -> None:
    first, *others = ranks.run(_train, ranks.sites, asks, slow, lockstep)
    assert all(met == first for met in others)
    for what in expected:
        if isinstance(what, str):
            earliest = min(step for step, asked in asks.values() if asked == what)
            assert any(f"{what}=True" in wants and step >= earliest for step, wants in first), first
        else:
            assert what[0] in [step for step, _ in first]
    stopped = any("stop=True" in wants for _, wants in first)
    assert (
        stopped == any(asked == "stop" and step < STEPS - 1 for step, asked in asks.values()) or first[-1][0] == STEPS
    )
