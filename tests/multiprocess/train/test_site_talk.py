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

import geocomm
from support.harness import Ranks, ranks_fixture

STEPS = 50
MEETS_EVERY = 20

ranks = ranks_fixture(
    {"2+1": ["a", "a", "b"], "1+1+1": list("abc")}, environment={"DS_ACCELERATOR": "cpu"}, trains=True
)


def _train(sites: list[str], asks: dict[int, tuple[int, str]], slow: str, lockstep: bool) -> list[tuple[int, str]]:
    """The steps after which all came together, with what was asked for; asks: by rank, at which step and for what."""
    from geocomm.train.loop.comm_meter import ROW, Wants
    from geocomm.train.loop.site_talk import SiteTalk

    site = sites[dist.get_rank()]
    counters = dict.fromkeys(("rounds", "held_back", "rounds_not_finite"), 0)
    local: Any = SimpleNamespace(sites=geocomm.sites(), in_lockstep=lockstep, summary=lambda: counters)
    talk = SiteTalk(local, site, torch.device("cpu"))
    pace = random.Random(f"{site} {asks} {slow}")
    when, what = asks.get(dist.get_rank(), (0, ""))
    met = []
    for step in range(1, STEPS + 1):
        time.sleep(pace.uniform(0, 0.004 if site == slow else 0.001))
        due = step % MEETS_EVERY == 0 or step == STEPS
        asked = step == when if what == "save" else 0 < when <= step
        wants = Wants(**{what: True}) if asked else Wants()
        row = [0.5 if step > 1 else 0.0, *[0.0] * (len(ROW) - 1)]
        talk.launch(step, torch.tensor(float(dist.get_rank())), row, wants)
        totals = talk.finish(meets=due)
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
        assert all(row["step_seconds"] == 0.5 * row["steps"] * len(local.sites.own) for row in reports)
    return met


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize(
    ("slow", "asks"),
    [
        ("a", {}),
        ("a", {2: (9, "stop")}),
        ("b", {2: (9, "stop")}),
        ("b", {1: (18, "stop")}),
        ("a", {0: (3, "save"), 2: (30, "stop")}),
        ("b", {0: (19, "save"), 1: (20, "save"), 2: (21, "save")}),
        ("a", {0: (STEPS - 1, "failed"), 2: (STEPS, "stop")}),
    ],
)
def test_sites_come_together_after_the_same_step(
    ranks: Ranks, slow: str, asks: dict[int, tuple[int, str]], lockstep: bool
) -> None:
    first, *others = ranks.run(_train, ranks.sites, asks, slow, lockstep)
    assert all(met == first for met in others)
    for step, what in asks.values():
        # What is asked for at the very end comes too late to be told.
        assert step > STEPS - 5 or any(f"{what}=True" in wants and met >= step for met, wants in first), first
    if not any(what == "stop" for _, what in asks.values()):
        assert {MEETS_EVERY, 2 * MEETS_EVERY, STEPS} <= {step for step, _ in first}
