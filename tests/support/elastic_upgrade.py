"""A rank of an elastic run that begins with the checkpoint of a per-step training, and saves an ordinary one.

elastic_upgrade.py OUT STEPS, with torchrun's variables. A site of several ranks has FSDP2, and torch's distributed
checkpoints; one of a single rank has a plain model, and torch.save. Run as `main` in one process, it is the training
before and after: `train` without local steps.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import geocomm

FEATURES = 16
ROUNDS = 4


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Other first weights in every process: a checkpoint has to bring them."""
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, FEATURES))
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, data: torch.Generator) -> float:
    x = torch.randn(16, FEATURES, generator=data)
    loss = (model(x) - x.roll(1, 1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": steps}, path)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def save_distributed(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    states = get_state_dict(model, optimizer)
    dcp.save({"model": states[0], "optimizer": states[1], "step": steps}, checkpoint_id=path)


def load_distributed(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    states = get_state_dict(model, optimizer)
    content: dict[str, Any] = {"model": states[0], "optimizer": states[1], "step": 0}
    dcp.load(content, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=content["model"], optim_state_dict=content["optimizer"])
    return content["step"]


def main(out: Path) -> None:
    """The rank."""
    dist.init_process_group("geocomm")
    site, sharded = os.environ["GEOCOMM_SITE"], dist.get_world_size() > 1
    torch.manual_seed(0)
    model, optimizer = make()
    if sharded:
        model = fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        begin_step = load_distributed(out / "before.dcp", model, optimizer)
    else:
        begin_step = load(out / "before.pt", model, optimizer)
    settings = geocomm.LocalSettings(every=5, fragments=1)
    handle = geocomm.local_steps(model, optimizer, settings, begin_step=begin_step)
    assert handle.run_step == begin_step
    data = torch.Generator().manual_seed(ord(site) + dist.get_rank())
    while handle.stats()["rounds"] < ROUNDS:
        step(model, optimizer, data)
        time.sleep(0.03)
    with handle.anchor():
        path = out / f"after-{site}"
        (save_distributed if sharded else save)(path, model, optimizer, handle.run_step)
    handle.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
