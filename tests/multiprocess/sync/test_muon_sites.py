"""Muon and AdamW that make a step together, over models that the ranks of a site share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedSites
from geocomm.sync.local_steps.local_steps import local_steps
from geocomm.sync.local_steps.outer.rounds import Rounds
from geocomm.sync.local_steps.settings.local_settings import LocalSettings
from support.harness import Ranks, hash_of, ranks_fixture
from support.local_models import make_model, train_steps
from support.sharded_sites import MODELS, whole

ranks = ranks_fixture({"1+2": ["b", "a", "b"]})
SETTINGS: dict[str, Any] = {"every": 4, "overlap": 1, "codec": "int8", "fragments": 2, "deterministic": True}


class Both:
    """Steps two optimizers."""

    def __init__(self, model: nn.Module) -> None:
        named = dict(model.named_parameters())
        matrices = [one for name, one in named.items() if name.endswith(("2.weight", "4.weight"))]
        rest = [one for name, one in named.items() if not name.endswith(("2.weight", "4.weight"))]
        self.each = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=1e-2, foreach=False)]

    def zero_grad(self) -> None:
        for one in self.each:
            one.zero_grad()

    def step(self) -> None:
        for one in self.each:
            one.step()


def run(rounds: Rounds | None, site: str, model: nn.Module) -> tuple[torch.Tensor, dict[str, Any]]:
    both = Both(model)
    handle = local_steps(model, both.each, LocalSettings(exact_below=100, **SETTINGS), rounds=rounds)
    train_steps(model, both, site, range(13))
    handle.finish()
    return whole(model), handle.stats()


def run_shared(sites: list[str], kind: str) -> tuple[torch.Tensor, dict[str, Any]]:
    return run(None, sites[dist.get_rank()], MODELS[kind](sites))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_muon_inside_sites_learns_what_simulated_sites_do(ranks: Ranks, kind: str) -> None:
    (expected, _), _ = SimulatedSites("ab").run(lambda rounds: run(rounds, rounds.site, make_model()))
    found = ranks.run(run_shared, ranks.sites, kind)
    assert len({hash_of(values) for values, _ in found}) == 1
    for values, stats in found:
        assert stats["steps"] == 13
        # Muon multiplies matrices in bfloat16, which adds up in another order where they are cut.
        torch.testing.assert_close(values, expected, rtol=0.05, atol=0.02)
