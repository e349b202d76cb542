"""merge_feedback of a model in shards: each shard's pieces stay in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import geocomm

pytestmark = pytest.mark.unit


def _state(shard: int, rank: int, value: float) -> dict[str, Any]:
    pieces = {"w": [(0, torch.full((4,), value)), (4, torch.full((2,), -value))]}
    place = {"rank": rank, "ranks": 2, "shard": shard, "shards": 2}
    return {"version": 1, "steps": 7, "residual": pieces, "momentum": {}} | place


def _sum(states: list[dict[str, Any]], shard: int) -> torch.Tensor:
    total = torch.zeros(6)
    for state in states:
        if state["shard"] == shard:
            for start, values in state["residual"].get("w", ()):
                total[start : start + values.numel()] += values
    return total


def test_shards_are_dealt_to_more_replicas_each_by_itself() -> None:
    states = [_state(shard, rank, 1.0 + 2 * shard + rank) for rank in range(2) for shard in range(2)]
    merged = geocomm.merge_feedback(states[::-1], 6)
    assert [(one["rank"], one["shard"]) for one in merged] == [(r, s) for r in range(3) for s in range(2)]
    assert {(one["ranks"], one["shards"], one["steps"]) for one in merged} == {(3, 2, 7)}
    for shard in range(2):
        assert torch.allclose(_sum(merged, shard) / 3, _sum(states, shard) / 2)


def test_states_without_a_shard_or_ranks_that_shards_do_not_divide_are_refused() -> None:
    states = [_state(shard, rank, 1.0) for rank in range(2) for shard in range(2)]
    for given, ranks in ((states, 5), (states[:3], 4), (states[:2] * 2, 4), ([states[0] | {"shards": 1}], 2)):
        with pytest.raises(geocomm.InvalidArgumentError):
            geocomm.merge_feedback(given, ranks)
