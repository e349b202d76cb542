"""Weights from torch.distributed.checkpoint, of a model that FSDP2 had cut over ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from geocomm.core.bad_input import BadInput
from geocomm.train.export.dcp_weights import open_dcp
from support.harness import Ranks, ranks_fixture

ranks = ranks_fixture({"2+1": ["a", "a", "b"]})


def _net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 2))  # nothing is a multiple of three


def _saved(folder: str, with_optimizer: bool) -> dict[str, torch.Tensor]:
    """Train a step, save; the whole weights."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    net = _net()
    for part in (net[0], net[2], net):
        fully_shard(part, mesh=DeviceMesh("cpu", list(range(dist.get_world_size()))))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    net(torch.ones(4, 5)).square().mean().backward()
    optimizer.step()
    model = get_model_state_dict(net)
    state: dict[str, Any] = model
    if with_optimizer:
        state = {"model": model, "optim": get_optimizer_state_dict(net, optimizer)}
    dcp.save(state, checkpoint_id=folder)
    return {name: value.full_tensor() for name, value in model.items()}


@pytest.mark.parametrize("with_optimizer", [False, True])
def test_weights_of_fsdp_are_whole_again(ranks: Ranks, tmp_path: Path, with_optimizer: bool) -> None:
    for expected in ranks.run(_saved, str(tmp_path), with_optimizer):
        weights = open_dcp(tmp_path)
        assert set(weights) == set(expected) == set(_net().state_dict())
        for name, value in expected.items():
            assert torch.equal(weights[name], value)
            assert not torch.equal(value, _net().state_dict()[name])
    files = sorted(tmp_path.glob("*.distcp"))
    assert len(files) == ranks.size
    files[1].unlink()
    with pytest.raises(BadInput, match=files[1].name):
        open_dcp(tmp_path)
