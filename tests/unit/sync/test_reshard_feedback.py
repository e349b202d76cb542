"""Feedback of a model in shards, dealt to other ranks: each shard's pieces stay in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import geocomm
from geocomm.sync.gradients.feedback_state import assign_states, header_of, take_over


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
    merged = geocomm.reshard_feedback(states[::-1], 6)
    assert [(one["rank"], one["shard"]) for one in merged] == [(r, s) for r in range(3) for s in range(2)]
    assert {(one["ranks"], one["shards"], one["steps"]) for one in merged} == {(3, 2, 7)}
    for shard in range(2):
        assert torch.allclose(_sum(merged, shard) / 3, _sum(states, shard) / 2)


def test_states_without_a_shard_or_ranks_that_shards_do_not_divide_are_refused() -> None:
    states = [_state(shard, rank, 1.0) for rank in range(2) for shard in range(2)]
    for given, ranks in ((states, 5), (states[:3], 4), (states[:2] * 2, 4), ([states[0] | {"shards": 1}], 2)):
        with pytest.raises(geocomm.InvalidArgumentError):
            geocomm.reshard_feedback(given, ranks)


def test_ranks_take_over_what_they_can_read_of_their_shard_and_lose_nothing() -> None:
    # Rank r of the old run held shard r % 2; three sites of two become two, on disks of their own.
    old = {rank: _state(rank % 2, rank // 2, 1.0 + rank) | {"ranks": 3} for rank in range(6)}
    headers = {rank: header_of(state) for rank, state in old.items()}
    first, second = ({rank: headers[rank] for rank in ranks} for ranks in ((0, 1, 2, 3), (2, 3, 4, 5)))
    seen = [(0, first), (1, first), (0, second), (1, second)]
    assigned = assign_states(seen)
    assert sorted(number for mine in assigned for number in mine) == list(range(6))
    assert max(map(len, assigned)) == 2
    new = []
    for rank, mine in enumerate(assigned):
        assert set(mine) <= set(seen[rank][1])
        place = (rank // 2, 2, rank % 2, 2)
        new.append(take_over([old[number] for number in mine], headers[0], place))
        assert (new[-1]["rank"], new[-1]["ranks"], new[-1]["shard"], new[-1]["steps"]) == (rank // 2, 2, rank % 2, 7)
    for shard in range(2):
        assert torch.allclose(_sum(new, shard) / 2, _sum(list(old.values()), shard) / 3)


def test_what_nobody_can_read_is_nobodys() -> None:
    headers = {rank: header_of(_state(0, rank, 1.0)) for rank in range(2)}
    assert assign_states([(0, {0: headers[0]}), (0, {}), (1, headers)]) == [[0], [], []]
    nothing = take_over([], headers[0], (1, 3, 0, 1))
    assert (nothing["rank"], nothing["ranks"], nothing["residual"]) == (1, 3, {})
