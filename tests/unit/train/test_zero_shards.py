"""Parameters come together again from what each partition of DeepSpeed's optimizers has of them."""

from __future__ import annotations

import math
import random

import pytest
import torch

from geocomm.core.bad_input import BadInput
from geocomm.train.export.checkpoint_weights import masters_cut_by_group, masters_cut_by_parameter, masters_not_cut
from geocomm.train.export.weights import Parts

Group = dict[str, torch.Tensor]


def _groups(seed: int) -> list[Group]:
    chosen = random.Random(seed)
    return [
        {
            f"{group}.{index}": torch.randn([chosen.randint(1, 9) for _ in range(chosen.randint(0, 3))])
            for index in range(chosen.randint(1, 6))
        }
        for group in range(chosen.randint(1, 3))
    ]


def _shapes(groups: list[Group]) -> list[dict[str, torch.Size]]:
    return [{name: value.shape for name, value in group.items()} for group in groups]


def _require_read(found: dict[str, Parts], groups: list[Group]) -> None:
    assert list(found) == [name for group in groups for name in group]
    for group in groups:
        for name, value in group.items():
            assert torch.equal(found[name].reader()(), value)


def _cut_by_group(groups: list[Group], partitions: int, align: int) -> tuple[list[list[int]], list[list[torch.Tensor]]]:
    """The gaps after each parameter, and each partition's part of each group: equal, but for the padding at the end."""
    gaps, shards = [], [[] for _ in range(partitions)]
    for group in groups:
        whole, behind = torch.empty(0), []
        for value in group.values():
            whole = torch.cat([whole, value.reshape(-1)])
            behind.append(-len(whole) % align)
            whole = torch.cat([whole, torch.full([behind[-1]], math.nan)])
        if behind[-1]:
            whole, behind[-1] = whole[: -behind[-1]], 0
        size = -(-len(whole) // (2 * partitions)) * 2
        for rank, shard in enumerate(shards):
            shard.append(whole[size * rank : size * (rank + 1)])
        gaps.append(behind)
    return gaps, shards


@pytest.mark.parametrize("align", [1, 4, 8])
@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 16])
def test_masters_cut_by_group_are_found_wherever_they_were_cut(partitions: int, align: int) -> None:
    for seed in range(20):
        groups = _groups(seed)
        gaps, shards = _cut_by_group(groups, partitions, align)
        _require_read(masters_cut_by_group(_shapes(groups), gaps, shards), groups)


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 16])
def test_masters_cut_by_parameter_are_found_without_what_fills_them_up(partitions: int) -> None:
    for seed in range(20):
        groups, shards = _groups(seed), [[] for _ in range(partitions)]
        for group in groups:
            parts: list[list[torch.Tensor]] = [[] for _ in range(partitions)]
            for value in group.values():
                padding = torch.full([-value.numel() % partitions], math.nan)
                for part, piece in zip(parts, torch.cat([value.reshape(-1), padding]).chunk(partitions), strict=True):
                    part.append(piece)
            for shard, part in zip(shards, parts, strict=True):
                shard.append(torch.cat(part))
        _require_read(masters_cut_by_parameter(_shapes(groups), shards), groups)


def test_masters_of_both_layouts_that_do_not_fit_are_refused() -> None:
    groups = [{"a": torch.randn(3, 5)}, {"b": torch.randn(4)}]
    gaps, shards = _cut_by_group(groups, 2, 1)
    for wrong in (
        [[shards[0][0][:-1], shards[0][1]], shards[1]],  # one element is lost
        [shards[0], shards[1], shards[1]],  # more partitions
        [shards[0], shards[1][:1]],  # fewer groups
    ):
        with pytest.raises(BadInput):
            masters_cut_by_group(_shapes(groups), gaps, wrong)
        with pytest.raises(BadInput):
            masters_cut_by_parameter(_shapes(groups), wrong)


def test_masters_that_are_not_cut_are_matrices_and_then_the_rest() -> None:
    weights: Group = {"a": torch.randn(4), "b": torch.randn(4, 3), "c": torch.randn(4), "d": torch.randn(4, 3)}
    groups = [[weights["b"], weights["d"]], [weights["a"], weights["c"]]]
    found = masters_not_cut(_shapes([weights])[0], groups)
    for name, value in weights.items():
        assert torch.equal(found[name].reader()(), value)
    with pytest.raises(BadInput):
        masters_not_cut(_shapes([weights])[0], groups[::-1])
    with pytest.raises(BadInput):
        masters_not_cut(_shapes([weights])[0], [groups[0], [weights["a"]]])


def test_parts_are_rounded_in_reading_and_whole_numbers_stay() -> None:
    parts = Parts([torch.tensor([1.0, 2.0]), torch.tensor([3.00001, 4.0])], (2, 2))
    read = parts.reader(torch.bfloat16)()
    assert read.dtype == torch.bfloat16
    assert read.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert Parts([torch.tensor([1 << 40])], (1,)).reader(torch.bfloat16)().item() == 1 << 40
