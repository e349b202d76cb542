"""A small model, its optimizer and the batches of sites that train it with local steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from geocomm.sync.local_steps.local_steps import LocalSteps, local_steps
from geocomm.sync.local_steps.outer.rounds import Rounds
from geocomm.sync.local_steps.settings.local_settings import LocalSettings

SITES = ("a", "b")


def make_model(seed: int = 0) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 20))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """One parameter after the other: the bits do not depend on what else the model has."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)


def batch(site: str, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The site's; sites whose names begin alike have the same."""
    generator = torch.Generator().manual_seed(1000 * ord(site[0]) + step)
    return torch.randint(20, (4, 3), generator=generator), torch.randint(20, (4,), generator=generator)


def loss_of(model: nn.Module, site: str, step: int) -> torch.Tensor:
    inputs, targets = batch(site, step)
    return nn.functional.cross_entropy(model(inputs), targets)


def train_step(model: nn.Module, optimizer: Any, site: str, step: int) -> None:
    optimizer.zero_grad()
    loss_of(model, site, step).backward()
    optimizer.step()


def train_steps(model: nn.Module, optimizer: Any, site: str, steps: Iterable[int]) -> None:
    """Every rank of a site has the site's batch."""
    for step in steps:
        train_step(model, optimizer, site, step)


def values(model: nn.Module) -> torch.Tensor:
    """Of all parameters, one after the other."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def train(rounds: Rounds, steps: int, **settings: Any) -> tuple[nn.Module, LocalSteps]:
    model = make_model()
    optimizer = adamw(model)
    handle = local_steps(model, optimizer, LocalSettings(exact_below=100, **settings), rounds=rounds)
    for step in range(steps):
        train_step(model, optimizer, rounds.site, step)
    return model, handle
