"""Hooks that read what a device computed only when the step is over, as on a GPU: tried with tensors of the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support import planned_gradients as planned
from support import sharded_gradients as sharded
from support.harness import Ranks
from support.planned_gradients import assert_same_bits

KINDS = {"ddp": planned, "fsdp": sharded}
LAYOUTS = {"2+1": ["a", "b", "a"], "one site": ["a", "a"]}
Results = list[dict[str, torch.Tensor]]


def _steps(codec: str, read_later: bool, hook: str) -> tuple[Results, dict[str, Any], dict[str, Any]]:
    """Gradients of steps of which one is spoiled, the state in the end, and the last statistics."""
    from geocomm.sync.gradients import bucket_reduction, named_values

    kind: Any = KINDS[hook]
    modules = (bucket_reduction, named_values)
    before = bucket_reduction.is_read_later
    for module in modules:
        module.is_read_later = (lambda _: True) if read_later else before  # type: ignore[assignment]
    try:
        kind.make(codec, adaptive=True)
        results = kind.run_steps(0, 3)
        kind.step(3, spoiled=(1, "two"))
        results += kind.run_steps(4, 3)
        return results, kind.state(), kind.handle().stats()
    finally:
        for module in modules:
            module.is_read_later = before


def _compare(ranks: Ranks, codec: str, hook: str) -> None:
    at_once = ranks.run(_steps, codec, False, hook)
    later = ranks.run(_steps, codec, True, hook)
    for (results, state, stats), (other_results, other_state, other_stats) in zip(at_once, later, strict=True):
        assert_same_bits([results, other_results])
        assert stats["skipped_steps"] == other_stats["skipped_steps"] == 1
        assert [row["ef_norm"] for row in stats["buckets"]] == [row["ef_norm"] for row in other_stats["buckets"]]
        assert state["residual"].keys() == other_state["residual"].keys()
        for name, pieces in state["residual"].items():
            for (start, values), (other_start, other_values) in zip(pieces, other_state["residual"][name], strict=True):
                assert start == other_start
                assert torch.equal(values, other_values)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codec", ["balanced", "topk:k=64"])
def test_ddp_hook_that_reads_later_gives_the_same_bits(layout: str, codec: str) -> None:
    with Ranks(LAYOUTS[layout]) as ranks:
        ranks.init()
        _compare(ranks, codec, "ddp")


def test_fsdp_hook_that_reads_later_gives_the_same_bits() -> None:
    environment = {"GEOCOMM_MIN_COMPRESS_BYTES": "1024"}
    with Ranks(["a", "a", "b", "b"], environment=environment) as ranks:
        ranks.init()
        _compare(ranks, "balanced", "fsdp")
