"""FSDP2 and torch.distributed.checkpoint, with no backend named: over the sites, and saved, loaded and gone on with."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from outcome import leave
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(mesh: dist.DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    for each in model.layers:
        fully_shard(each, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    losses = []
    for step in steps:
        x = torch.randn(4, 8, 32, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
        loss = (model(x) - x.sin()).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
        losses.append(loss.item())
    return losses


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group()
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    folder = Path(os.environ["OUTCOME"], "checkpoint")
    model, optimizer = build(mesh)
    losses = train(model, optimizer, range(3))
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    model, optimizer = build(mesh)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    losses += train(model, optimizer, range(3, 6))
    leave(losses, model.state_dict().values())
    dist.destroy_process_group()


main()
