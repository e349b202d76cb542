"""The run of some rows, trained by geocomm's own handle of local steps in simulated sites."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from typing import Any

import torch
from local_rows import BETA2, CLIP_NORM, LENGTH, WEIGHT_DECAY, Recipe, Rows, Run, loss_sum

from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedSites
from geocomm.sync.local_steps.local_steps import local_steps
from geocomm.sync.local_steps.outer.rounds import Rounds
from geocomm.sync.local_steps.settings.local_settings import LocalSettings, Nesterov


def simulated(recipe: Recipe, run: Run, text: torch.Tensor, held_out: torch.Tensor) -> float:
    """Its held-out loss. The first weights and the sequences are those of the rows; all on the CPU."""
    rows = Rows(recipe, [run], text, held_out)
    batches = list(rows.batches())
    model = torch.nn.ParameterDict(OrderedDict(rows.leaves(rows.first_weights(run.seed))))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(run.beta, BETA2), weight_decay=WEIGHT_DECAY)

    def step(
        number: int, model: torch.nn.ParameterDict, optimizer: torch.optim.Optimizer, tokens: torch.Tensor
    ) -> None:
        optimizer.param_groups[0]["lr"] = run.rate * recipe.rate_share(number)
        optimizer.zero_grad()
        loss = loss_sum(
            rows.size, {name: value.unsqueeze(0) for name, value in model.named_parameters()}, tokens.unsqueeze(0)
        )
        loss.div(tokens.shape[0] * LENGTH).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()

    for number in range(recipe.joint_steps):
        step(number, model, optimizer, batches[number].flatten(0, 1))

    def train_site(rounds: Rounds) -> dict[str, Any]:
        own = copy.deepcopy(model)
        inner = torch.optim.AdamW(own.parameters(), betas=(run.beta, BETA2), weight_decay=WEIGHT_DECAY)
        inner.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        settings = LocalSettings(
            every=run.every,
            outer=Nesterov(run.outer_lr, run.outer_momentum),
            overlap=1,
            fragments=1,
            deterministic=True,
        )
        handle = local_steps(own, inner, settings, rounds=rounds)
        for number in range(recipe.joint_steps, recipe.steps):
            step(number, own, inner, batches[number][int(rounds.site)])
        handle.finish()
        row = torch.cat([value.detach().flatten() for value in own.values()])
        return {"loss": rows.held_out_losses(row.unsqueeze(0))[0] if rounds.site == "0" else math.nan}

    return SimulatedSites([str(site) for site in range(run.sites)], timeout_s=3600).run(train_site)[0]["loss"]
