"""The private parts of torch: what is missing is named, and a torch that was not checked is warned of."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from geocomm.core.errors import UnsupportedError
from geocomm.sync.gradients.fsdp_seams import CHECKED_TORCH, reduce_units, require_known_parts


@pytest.fixture
def sharded() -> Iterator[nn.Module]:
    """A model of fully_shard in a group of one."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
        yield net
    finally:
        torch.distributed.destroy_process_group()


def test_this_torch_has_the_parts_and_was_checked(sharded: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (unit,) = reduce_units(sharded)
    assert len(unit.parameters) == 4


@pytest.mark.parametrize("version", ["2.130.0+cpu", "3.0.0a0+git1234"])
def test_torch_that_was_not_checked_is_warned_of(version: str) -> None:
    with pytest.warns(UserWarning, match="check_replicas") as caught:
        require_known_parts([], version)
    assert version in str(caught[0].message)


def test_parts_that_are_missing_are_named() -> None:
    parameter = SimpleNamespace(sharded_param=None, sharded_size=None)
    group = SimpleNamespace(fsdp_params=[parameter], device=None, mesh_info=None, gradient_divide_factor=None)
    with pytest.raises(UnsupportedError) as caught:
        require_known_parts([group], "2.16.0")
    text = str(caught.value)
    assert "torch 2.16.0 has no FSDPParam.padded_sharded_param_size, FSDPParamGroup._all_reduce_hook" in text
    assert ", ".join(CHECKED_TORCH) in text


def test_builds_of_a_version_that_was_checked_are_let_through() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for minor in CHECKED_TORCH:
            require_known_parts([], f"{minor}.1+cu130")
