"""Local steps between real sites: the bits of the simulated ones, DDP inside a site, late results, clear errors."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import geocomm
from geocomm.group.backend.runtime import runtime
from geocomm.group.planning.local_estimate import chosen_reduce
from geocomm.sync.local_steps.fixed import round_exchange
from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedSites
from geocomm.sync.local_steps.local_steps import LocalSteps, local_steps
from geocomm.sync.local_steps.outer import delta_frames
from geocomm.sync.local_steps.outer.rounds import Coding, Rounds
from geocomm.sync.local_steps.settings.local_settings import LocalSettings, Reduce
from support.harness import Ranks, hash_of, ranks_fixture
from support.local_models import adamw, make_model, train_steps, values
from support.sent_bytes import CYCLES, FRAGMENTS, FRAME_BYTES, sent_to_sites

SETTINGS: dict[str, dict[str, Any]] = {
    "fp32": {"every": 4, "overlap": 0, "codec": "none"},
    "int4": {"every": 5, "overlap": 2, "codec": "int4", "fragments": 3},
    "loco": {"every": 3, "overlap": 1, "preset": "loco", "fragments": 4},
    "aggregator": {"every": 5, "overlap": 2, "codec": "int4", "fragments": 3, "reduce": "aggregator"},
    "entropy": {"every": 4, "overlap": 3, "codec": "int8+huffman", "merge": "carry"},
}
STEPS = 17

ranks = ranks_fixture(
    {
        "1+1": ["a", "b"],
        "2+1": ["a", "a", "b"],
        "2+4": pytest.param(["a", "b", "a", "b", "b", "b"], marks=pytest.mark.slow),
        "1+1+1": list("abc"),
    }
)


def of_site(model: nn.Module, sites: Sequence[str]) -> nn.Module:
    """Under DDP over the ranks of this rank's site, if there are two; every rank calls it.

    The mean of two equal gradients has the bits of each; of more it has not, and there the ranks are alike without.
    """
    inside = geocomm.sites().inside
    return DistributedDataParallel(model, process_group=inside) if sites.count(sites[dist.get_rank()]) == 2 else model


def run(
    rounds: Rounds | None, site: str, model: nn.Module, settings: dict[str, Any]
) -> tuple[str, str, dict[str, Any]]:
    """Hashes of the anchor on the way and of the result, and the statistics."""
    optimizer = adamw(model)
    handle = local_steps(
        model, optimizer, LocalSettings(exact_below=100, deterministic=True, **settings), rounds=rounds
    )
    train_steps(model, optimizer, site, range(STEPS))
    with handle.anchor():
        before = hash_of(values(model))
    handle.finish()
    return before, hash_of(values(model)), handle.stats()


def _run(sites: list[str], settings: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    return run(None, sites[dist.get_rank()], of_site(make_model(), sites), settings)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_sites_have_the_bits_of_simulated_ones(ranks: Ranks, settings: dict[str, Any]) -> None:
    names = list(dict.fromkeys(map(str, ranks.sites)))
    simulated = SimulatedSites(names).run(lambda rounds: run(rounds, rounds.site, make_model(), settings))
    assert len({after for _, after, _ in simulated}) == 1
    for before, after, stats in ranks.run(_run, ranks.sites, settings):
        assert (before, after) == simulated[0][:2]
        assert stats["rounds"] == simulated[0][2]["rounds"] > 4
        assert stats["in_flight"] == 0
    # Nobody but the ranks that own fragments sends anything between sites.
    sent = [stats["wire_bytes"] for _, _, stats in ranks.run(_run, ranks.sites, settings)]
    for site, (_, _, expected) in zip(names, simulated, strict=True):
        assert sum(b for name, b in zip(ranks.sites, sent, strict=True) if name == site) == expected["wire_bytes"]


def _first_part(sites: list[str], settings: dict[str, Any]) -> bytes:
    model = of_site(make_model(), sites)
    optimizer = adamw(model)
    handle = local_steps(model, optimizer, LocalSettings(exact_below=100, deterministic=True, **settings))
    train_steps(model, optimizer, sites[dist.get_rank()], range(8))
    file = io.BytesIO()
    torch.save([handle.state_dict(), model.state_dict(), optimizer.state_dict()], file)
    handle.finish()
    return file.getvalue()


def _second_part(sites: list[str], settings: dict[str, Any], saved: list[bytes]) -> str:
    model = of_site(make_model(), sites)
    optimizer = adamw(model)
    handle = local_steps(model, optimizer, LocalSettings(exact_below=100, deterministic=True, **settings))
    states = torch.load(io.BytesIO(saved[dist.get_rank()]), weights_only=True)
    for target, state in zip((handle, model, optimizer), states, strict=True):
        target.load_state_dict(state)
    train_steps(model, optimizer, sites[dist.get_rank()], range(8, STEPS))
    handle.finish()
    return hash_of(values(model))


def test_with_an_aggregator_a_site_sends_less_than_two_deltas_a_round() -> None:
    model_bytes = FRAGMENTS * FRAME_BYTES
    with Ranks(list("abcd")) as ranks:
        ranks.init()
        to_all, to_one = (ranks.run(sent_to_sites, reduce) for reduce in ("all", "aggregator"))
    for sent in to_all:
        assert sum(sent.values()) == pytest.approx(3 * model_bytes * CYCLES, rel=0.05)
    for sent in to_one:
        assert sum(sent.values()) == pytest.approx(2 * 3 / 4 * model_bytes * CYCLES, rel=0.05)


def _chosen(_: list[str]) -> tuple[str, str]:
    """What "auto" is at this rank, and what the links say."""
    model = make_model()
    handle = local_steps(model, adamw(model), LocalSettings(every=2, overlap=1, codec="int4", reduce="auto"))
    stats = handle.stats()
    handle.finish()
    world = runtime.world
    assert world is not None
    assert world.policy is not None
    return stats.get("reduce", "all"), chosen_reduce(stats["elements"], world.policy.links, "int4").reduce


def test_all_sites_begin_with_the_same_way_to_reduce_where_the_links_choose_it() -> None:
    with Ranks(list("abcd")) as ranks:
        ranks.init()
        found = ranks.run(_chosen, list("abcd"))
    assert len(set(found)) == 1
    assert found[0][0] == found[0][1]


def _left_behind(sites: list[str]) -> tuple[int, int]:
    """Threads of rounds, and process groups, that a run leaves beside the site's."""
    _ = geocomm.sites().inside  # lives as long as the default process group, whoever makes it
    groups = len(dist.distributed_c10d._world.pg_map)
    model = make_model()
    handle = local_steps(model, optimizer := adamw(model), LocalSettings(every=2, overlap=1))
    train_steps(model, optimizer, sites[dist.get_rank()], range(4))
    handle.finish()
    for thread in threading.enumerate():
        if thread.name.startswith("geocomm-rounds"):
            thread.join(10)
    left = sum(thread.name.startswith("geocomm-rounds") for thread in threading.enumerate())
    return left, len(dist.distributed_c10d._world.pg_map) - groups


def test_finished_run_leaves_neither_threads_nor_groups(ranks: Ranks) -> None:
    assert ranks.run(_left_behind, ranks.sites) == [(0, 0)] * ranks.size


@pytest.mark.parametrize("name", ["int4", "aggregator"])
def test_resumed_run_has_the_bits_of_one_that_was_not_interrupted(ranks: Ranks, name: str) -> None:
    settings = SETTINGS[name]
    whole = {after for _, after, _ in ranks.run(_run, ranks.sites, settings)}
    saved = ranks.run(_first_part, ranks.sites, settings)
    assert set(ranks.run(_second_part, ranks.sites, settings, saved)) == whole


def _with_a_late_site(sites: list[str], reduce: Reduce) -> tuple[str, int, dict[str, Any], float]:
    """Site b begins a minute's worth of steps late."""
    site = sites[dist.get_rank()]
    model = of_site(make_model(), sites)
    optimizer = adamw(model)
    handle = local_steps(
        model, optimizer, LocalSettings(exact_below=100, every=4, overlap=1, fragments=2, codec="int4", reduce=reduce)
    )
    if site == "a":
        train_steps(model, optimizer, site, range(30))
        alone = handle.stats()["rounds"]
        dist.barrier()
    else:
        dist.barrier()
        alone = 0
        train_steps(model, optimizer, site, range(10))
    handle.finish()
    return hash_of(values(model)), alone, handle.stats(), handle.stats()["waited_seconds"]


@pytest.mark.parametrize("reduce", ["all", "aggregator"])
def test_site_whose_results_are_late_trains_on_and_catches_up(ranks: Ranks, reduce: Reduce) -> None:
    found = ranks.run(_with_a_late_site, ranks.sites, reduce)
    assert len({after for after, *_ in found}) == 1
    assert len({stats["rounds"] for _, _, stats, _ in found}) == 1
    for site, (_, alone, stats, _) in zip(ranks.sites, found, strict=True):
        if site == "a":
            assert alone == 0  # nothing came from the other site, and no step waited for it
            assert stats["held_back"] > 0
            assert stats["steps"] == 30
        assert stats["rounds"] >= 4


def _refusal(sites: list[str], change: str) -> str:
    site = sites[dist.get_rank()]
    model = make_model()
    if change == "DDP over all":
        model = DistributedDataParallel(model)
    settings: dict[str, Any] = {"every": 4}
    if site == sites[-1]:
        if change == "weights":
            with torch.no_grad():
                model[2].bias[3] += 1e-7
        elif change == "every":
            settings["every"] = 5
        elif change == "optimizer":
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        elif change == "bad argument":
            settings["overlap"] = 5
    if not (change == "optimizer" and site == sites[-1]):
        optimizer = adamw(model)
    full = change == "memory" and site == sites[-1]
    left = mock.patch("geocomm.sync.local_steps.outer.site_state.available_memory", return_value=1000)
    try:
        with left if full else nullcontext():
            local_steps(model, optimizer, LocalSettings(**settings))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "begun"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("weights", ["ReplicaMismatchError", "2.bias"]),
        ("every", ["InvalidArgumentError", "every is 5"]),
        ("optimizer", ["InvalidArgumentError", "optimizer is SGD", "AdamW"]),
        ("bad argument", ["InvalidArgumentError", "overlap is 5"]),
        ("memory", ["InvalidArgumentError", "GiB of host memory", "more fragments"]),
        ("DDP over all", ["InvalidArgumentError", "DDP reduces every gradient between the sites a, b"]),
    ],
)
def test_what_differs_between_sites_is_refused_on_every_rank_by_name(
    ranks: Ranks, change: str, words: list[str]
) -> None:
    for said in ranks.run(_refusal, ranks.sites, change):
        assert all(word in said for word in words), said


def _begin() -> None:
    local_steps(model := make_model(), adamw(model))


def test_one_site_is_refused() -> None:
    with Ranks(["a", "a"]) as ranks:
        ranks.init()
        for outcome in ranks.outcomes(_begin):
            assert "two sites" in outcome.require("InvalidArgumentError").message
        ranks.destroy()
        for outcome in ranks.outcomes(_begin):
            assert "init_process_group" in outcome.require("InvalidArgumentError").message


def _average_wrong(sites: list[str], liar: str, steps: int) -> list[str]:
    """The error with which rounds end where a site averages other than it should."""
    site = sites[dist.get_rank()]
    honest = delta_frames.through_frames

    def lie(values: torch.Tensor, *others: Any, **named: Any) -> delta_frames.DeltaFrames:
        values[0] += 1.0
        return honest(values, *others, **named)

    model = make_model()
    settings = LocalSettings(every=1, overlap=0, fragments=1, reduce="aggregator", deterministic=True)
    lies = mock.patch.object(round_exchange, "through_frames", lie) if site == liar else nullcontext()
    handle = local_steps(model, optimizer := adamw(model), settings)
    try:
        with lies:
            train_steps(model, optimizer, site, range(steps))
            handle.finish()
    except geocomm.GeocommError as error:
        return [type(error).__name__, str(error)]
    return []


def test_an_average_that_another_site_does_not_make_of_the_same_deltas_ends_the_run_at_all_sites() -> None:
    sites = list("abc")
    coding = Coding("int4", 1.0, "mean", "aggregator")
    checks = [(coding.aggregator(sites, number), coding.checker(sites, number)) for number in range(400)]
    number, checker = next((number, who) for number, (by, who) in enumerate(checks) if by == "a" and who)
    with Ranks(sites) as ranks:
        ranks.init()
        assert ranks.run(_average_wrong, sites, "", number + 1) == [[], [], []]
        for found in ranks.run(_average_wrong, sites, "a", number + 9):
            assert found[0] == "ReplicaMismatchError"
            assert f"round {number}: the average of site 'a' is not what site '{checker}' makes of the same" in found[1]


_handle: tuple[nn.Module, torch.optim.Optimizer, LocalSteps]


def _train(steps: int, lost: bool, reduce: Reduce) -> None:
    global _handle
    site = os.environ["GEOCOMM_SITE"]
    if not lost:
        model = make_model()
        optimizer = adamw(model)
        _handle = model, optimizer, local_steps(model, optimizer, LocalSettings(every=3, overlap=1, reduce=reduce))
    elif site == "b":
        os._exit(9)
    model, optimizer, handle = _handle
    train_steps(model, optimizer, site, range(steps))
    if lost:
        handle.finish()


@pytest.mark.parametrize("reduce", ["all", "aggregator"])
@pytest.mark.parametrize("sites", [["a", "b"], ["a", "a", "b"]], ids=["1+1", "2+1"])
def test_lost_site_ends_the_run_with_its_name(sites: list[str], reduce: Reduce) -> None:
    with Ranks(sites) as ranks:
        ranks.init()
        ranks.run(_train, 7, False, reduce)
        first, *others, lost = ranks.outcomes(_train, 7, True, reduce)
        assert lost.exit_code == 9
        assert "site b" in first.require("PeerLostError").message
        for other in others:
            assert "of this site" in other.require("PeerLostError").message
