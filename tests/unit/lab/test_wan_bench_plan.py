"""The plan of an all-reduce benchmark on its way to the workers."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from geocomm.lab.bench.wan_bench import Effort, WanBenchPlan


def test_plan_is_read_as_it_was_written() -> None:
    plan = Effort(repeats=2, pause_s=0.25).plan(["gloo", "int8"], [4096], interleave=True, ranks_per_site=3)
    assert WanBenchPlan.from_json(plan.to_json()) == plan
    assert list(plan.rounds()) == [(4096, ("gloo", "int8"))]


@pytest.mark.parametrize("text", ["{}", '{"cases": ["gloo"]}', "[]", "nonsense"])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        WanBenchPlan.from_json(text)
