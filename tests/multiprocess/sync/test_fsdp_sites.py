"""Local steps of models that the ranks of a site share (FSDP2, DDP): what one rank per site computes, clear errors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Shard, distribute_module

import geocomm
from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedSites
from geocomm.sync.local_steps.local_steps import local_steps
from geocomm.sync.local_steps.outer.rounds import Rounds
from geocomm.sync.local_steps.settings.local_settings import LocalSettings
from support.harness import Ranks, hash_of, ranks_fixture
from support.local_models import adamw, loss_of, make_model, train_steps
from support.sharded_sites import MODELS, WAYS, fsdp, site_mesh, whole

ranks = ranks_fixture({"1+2": ["b", "a", "b"]})
even_ranks = ranks_fixture({"2+2": ["a", "b", "b", "a"]})
INT4: dict[str, Any] = {"every": 5, "overlap": 2, "codec": "int4", "fragments": 3, "exact_below": 100}
SETTINGS: dict[str, dict[str, Any]] = {
    "fp32": {"every": 4, "overlap": 0, "codec": "none"},
    "carry": {"every": 3, "overlap": 2, "codec": "int8", "merge": "carry", "fragments": 4},
}
STEPS = 13
Result = tuple[torch.Tensor, torch.Tensor, dict[str, Any]]


def run(rounds: Rounds | None, site: str, model: nn.Module, way: str, settings: dict[str, Any]) -> Result:
    """The anchor on the way, the result, and the statistics."""
    optimizer = adamw(model)
    handle = local_steps(model, optimizer, LocalSettings(deterministic=True, **settings), rounds=rounds)
    WAYS[way](model, optimizer, site, STEPS)
    with handle.anchor():
        before = whole(model)
        with torch.no_grad():
            loss_of(model, site, 0)  # FSDP2 leaves whole parameters in the model
    WAYS[way](model, optimizer, site, 3)
    handle.finish()
    return before, whole(model), handle.stats()


def run_sharded(sites: list[str], kind: str, way: str, settings: dict[str, Any]) -> Result:
    model = fsdp(sites, low_precision=True) if way == "low precision" else MODELS[kind](sites)
    return run(None, sites[dist.get_rank()], model, way, settings)


def check_sites(ranks: Ranks, kind: str, way: str, settings: dict[str, Any]) -> None:
    expected, other = SimulatedSites("ab").run(lambda rounds: run(rounds, rounds.site, make_model(), way, settings))
    assert hash_of(expected[1]) == hash_of(other[1])
    found = ranks.run(run_sharded, ranks.sites, kind, way, settings)
    for before, after, stats in found:
        assert hash_of(before, after) == hash_of(*found[0][:2])
        if way == "clipped":  # a norm over shards is added up in another order
            torch.testing.assert_close(before, expected[0], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(after, expected[1], rtol=1e-4, atol=1e-5)
        else:
            assert hash_of(before, after) == hash_of(*expected[:2])
        assert stats["steps"] == expected[2]["steps"]
        assert stats["rounds"] == expected[2]["rounds"] >= 4
    for site, one in (("a", expected), ("b", other)):
        sent = [stats["wire_bytes"] for name, (*_, stats) in zip(ranks.sites, found, strict=True) if name == site]
        assert sum(sent) == one[2]["wire_bytes"]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_sites_of_shards_have_the_bits_of_simulated_ones(ranks: Ranks, settings: dict[str, Any]) -> None:
    check_sites(ranks, "fsdp", "plain", settings)


def test_copies_of_shards_have_the_bits_of_simulated_ones(even_ranks: Ranks) -> None:
    check_sites(even_ranks, "hsdp", "plain", INT4)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "compiled"])  # FSDP2 compiles for seconds
def test_way_of_training_shards_gives_what_simulated_sites_compute(even_ranks: Ranks, way: str) -> None:
    check_sites(even_ranks, "fsdp", way, INT4)


@pytest.mark.parametrize(  # where DDP has something of its own
    "way", ["accumulated", "scaled", pytest.param("compiled", marks=pytest.mark.slow)]
)
def test_way_of_training_copies_gives_what_simulated_sites_compute(even_ranks: Ranks, way: str) -> None:
    check_sites(even_ranks, "ddp", way, INT4)


def _resumed(sites: list[str], settings: dict[str, Any]) -> tuple[str, str]:
    """The results of a run that went on, and of another that took over its states."""
    site, results = sites[dist.get_rank()], []
    saved: list[Any] = []
    for first in (0, 8):
        model = fsdp(sites)
        optimizer = adamw(model)
        handle = local_steps(model, optimizer, LocalSettings(deterministic=True, **settings))
        if first:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            handle.load_state_dict(saved[2])
        else:
            train_steps(model, optimizer, site, range(8))
            state = handle.state_dict()
            saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), state])
        train_steps(model, optimizer, site, range(8, STEPS))
        handle.finish()
        results.append(hash_of(whole(model)))
    return results[0], results[1]


def test_resumed_run_has_the_bits_of_one_that_was_not_interrupted(ranks: Ranks) -> None:
    for whole_run, resumed in ranks.run(_resumed, ranks.sites, INT4):
        assert whole_run == resumed


def _state_of_another_rank(sites: list[str]) -> str:
    model = fsdp(sites)
    optimizer = adamw(model)
    handle = local_steps(model, optimizer, LocalSettings(fragments=3))
    state = handle.state_dict()
    held = sorted(state["fragments"])
    state["rank"] = f"another {state['rank']}"
    try:
        handle.load_state_dict(state)
    except geocomm.InvalidArgumentError as error:
        handle.finish()
        return f"{held} {error}"
    return "loaded"


def test_rank_holds_the_outer_state_of_its_own_fragments_only(ranks: Ranks) -> None:
    found = ranks.run(_state_of_another_rank, ranks.sites)
    owners = min(ranks.sites.count("a"), ranks.sites.count("b"))
    places = [ranks.sites[:rank].count(site) for rank, site in enumerate(ranks.sites)]
    for place, said in zip(places, found, strict=True):
        own = [index for index in range(3) if index % owners == place]
        assert said.startswith(f"{own} rank of the site was another {place} of")


class _Other(nn.Module):
    """A parameter of another kind beside sharded ones."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.alone = nn.Parameter(torch.zeros(3))


def _refused(sites: list[str], change: str) -> str:
    model, mesh = make_model(), site_mesh()
    if change == "mesh over sites":
        model = fully_shard(model, mesh=DeviceMesh("cpu", list(range(len(sites)))))
    elif change == "columns":
        model = fully_shard(model, mesh=mesh, shard_placement_fn=lambda one: Shard(one.dim() - 1))
    elif change == "not sharded":
        model = _Other(fully_shard(model, mesh=mesh))
    elif change == "bf16":
        model = fully_shard(model.bfloat16(), mesh=mesh)
    elif change == "shards alone":
        model = distribute_module(model, mesh)
    elif change == "FSDP1":
        model = FullyShardedDataParallel(model, process_group=mesh.get_group(), device_id=torch.device("cpu"))
    else:
        if change == "weights" and sites[dist.get_rank()] == "b":
            with torch.no_grad():
                model[2].bias[15] += 1e-7
        if change == "frozen weights":
            model[2].bias.requires_grad_(False)
            if sites[dist.get_rank()] == "b":
                model[2].bias.data[15] += 1e-7
        model = fully_shard(model, mesh=mesh)
    settings: dict[str, Any] = {"every": 4, "overlap": 5} if change == "one rank" and dist.get_rank() == 1 else {}
    try:
        local_steps(model, adamw(model), LocalSettings(**settings))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "begun"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("mesh over sites", ["InvalidArgumentError", "0.weight", "ranks of", "device_mesh()['local']"]),
        ("columns", ["UnsupportedError", "0.weight", "Shard(0)"]),
        ("not sharded", ["UnsupportedError", "alone is not sharded"]),
        ("bf16", ["UnsupportedError", "0.weight is bfloat16"]),
        ("shards alone", ["UnsupportedError", "0.weight is a shard", "fully_shard"]),
        ("FSDP1", ["UnsupportedError", "fully_shard"]),
        ("weights", ["ReplicaMismatchError", "2.bias"]),
        ("frozen weights", ["ReplicaMismatchError", "2.bias"]),
        ("one rank", ["InvalidArgumentError", "overlap is 5"]),
    ],
)
def test_shards_that_cannot_be_averaged_are_refused_on_every_rank_by_name(
    ranks: Ranks, change: str, words: list[str]
) -> None:
    for said in ranks.run(_refused, ranks.sites, change):
        assert all(word in said for word in words), said
