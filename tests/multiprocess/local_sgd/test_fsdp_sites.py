"""Local steps of FSDP2 models whose ranks hold rows: the bits of one rank per site, what goes with it, clear errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

import geocomm
from geocomm.local_sgd.local_steps import local_steps
from geocomm.local_sgd.rounds import Rounds
from geocomm.local_sgd.simulated_rounds import SimulatedSites
from support.harness import Ranks, hash_of, ranks_fixture
from support.local_models import adamw, loss_of, make_model, train_steps, values

ranks = ranks_fixture({"1+1": ["a", "b"], "2+2": ["a", "b", "b", "a"], "1+2": ["b", "a", "b"]})
INT4: dict[str, Any] = {"every": 5, "overlap": 2, "codec": "int4", "fragments": 3, "exact_below": 100}
SETTINGS: dict[str, dict[str, Any]] = {
    "fp32": {"every": 4, "overlap": 0, "codec": "none", "exact_below": 100},
    "int4": INT4,
    "carry": {"every": 3, "overlap": 2, "codec": "int8", "merge": "carry", "fragments": 4},
}
STEPS = 13


def site_mesh(sites: list[str]) -> DeviceMesh:
    """Over the ranks of this rank's site; collective."""
    if len({sites.count(site) for site in sites}) == 1:
        return geocomm.device_mesh()["local"]
    groups = {site: [rank for rank, other in enumerate(sites) if other == site] for site in dict.fromkeys(sites)}
    made = {site: dist.new_group(ranks) for site, ranks in groups.items()}
    own = made[sites[dist.get_rank()]]
    return DeviceMesh.from_group(own, "cpu", mesh=groups[sites[dist.get_rank()]])


def sharded(sites: list[str], policy: MixedPrecisionPolicy | None = None) -> nn.Module:
    """Most parameters have an odd number of rows per rank."""
    model, mesh = make_model(), site_mesh(sites)
    settings = {"mesh": mesh} | ({} if policy is None else {"mp_policy": policy})
    fully_shard(model[2], **settings)
    return fully_shard(model, **settings)


def whole(model: nn.Module) -> torch.Tensor:
    """The values of all parameters, sharded ones gathered; collective over the ranks of the site."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    return torch.cat([parameter.full_tensor().detach().reshape(-1) for parameter in model.parameters()])


def run(sites: list[str], settings: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Hashes of the anchor on the way and of the result, and the statistics."""
    site, model = sites[dist.get_rank()], sharded(sites)
    optimizer = adamw(model)
    handle = local_steps(model, optimizer, deterministic=True, **settings)
    train_steps(model, optimizer, site, range(STEPS))
    with handle.anchor():
        loss_of(model, site, 0)  # leaves whole parameters in the model
        before = hash_of(whole(model))
    handle.finish()
    return before, hash_of(whole(model)), handle.stats()


def simulated(settings: dict[str, Any], train: Callable[..., None] = train_steps) -> tuple[str, str, int]:
    """What each rank of `run` gives, with the bytes of a whole site."""

    def one(rounds: Rounds) -> tuple[str, str, int]:
        model = make_model()
        optimizer = adamw(model)
        handle = local_steps(model, optimizer, rounds=rounds, deterministic=True, **settings)
        train(model, optimizer, rounds.site, range(STEPS))
        with handle.anchor():
            before = hash_of(values(model))
        handle.finish()
        return before, hash_of(values(model)), handle.stats()["wire_bytes"]

    results = SimulatedSites("ab").run(one)
    assert results[0] == results[1]
    return results[0]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_sharded_sites_have_the_bits_of_simulated_ones(ranks: Ranks, settings: dict[str, Any]) -> None:
    before, after, wire_bytes = simulated(settings)
    found = ranks.run(run, ranks.sites, settings)
    assert [one[:2] for one in found] == [(before, after)] * ranks.size
    for site in "ab":
        of_site = [stats["wire_bytes"] for name, (_, _, stats) in zip(ranks.sites, found, strict=True) if name == site]
        assert sum(of_site) == wire_bytes
