"""What ranks publish of a tensor that ZeRO 3 has cut into runs of elements."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from geocomm.core import zero_cuts
from geocomm.core.errors import InvalidArgumentError
from geocomm.weights import rank_shares
from geocomm.weights.rank_shares import own_share
from geocomm.weights.weight_layout import TensorShape, WeightLayout, WeightPart, pack_boxes

SHAPES = st.lists(st.integers(0, 7), max_size=4).map(tuple)


def partitioned(whole: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """A rank's parameter as ZeRO 3 leaves it: equal parts, the last of which are filled up."""
    most = -(-whole.numel() // ranks)
    padded = torch.cat([whole.flatten(), torch.full((most * ranks - whole.numel(),), -1, dtype=whole.dtype)])
    own: Any = padded[most * rank : most * (rank + 1)].clone()
    own.ds_numel = most
    parameter: Any = torch.empty(0, dtype=whole.dtype)
    parameter.ds_tensor, parameter.ds_shape, parameter.ds_process_group = own, whole.shape, rank
    parameter.ds_numel = whole.numel()
    return parameter


@given(shape=SHAPES, ranks=st.integers(1, 5), part_bytes=st.integers(8, 200))
def test_parts_of_all_ranks_have_each_element_once(shape: tuple[int, ...], ranks: int, part_bytes: int) -> None:
    whole, found = torch.arange(math.prod(shape)).view(shape), torch.full(shape, -1)
    tensors, all_parts = [TensorShape("w", "int64", shape)], list[WeightPart]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero_cuts, "dist", SimpleNamespace(get_rank=lambda group: group))
        for rank in range(ranks):
            parameter = partitioned(whole, rank, ranks)
            share = own_share(0, "w", parameter, leads=rank == 0)
            assert len(share.boxes) <= max(1, 2 * len(shape) - 1)
            parts = pack_boxes(tensors, share.boxes, part_bytes)
            all_parts += parts
            for part in parts:
                for box, target in part.cut(part.empty()):
                    target.copy_(share.view(box, rank_shares.local_part(parameter)))
                    box.of(found).copy_(target)
    WeightLayout(tensors=tuple(tensors), parts=tuple(all_parts))
    assert torch.equal(found, whole)


def test_run_that_is_not_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zero_cuts, "dist", SimpleNamespace(get_rank=lambda group: group))
    parameter: Any = partitioned(torch.arange(6), 1, 2)
    parameter.ds_tensor.data = torch.empty(0, dtype=torch.int64)
    with pytest.raises(InvalidArgumentError, match="NVMe"):
        own_share(0, "w", parameter, leads=False)
