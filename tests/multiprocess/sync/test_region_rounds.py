"""Rounds of real sites in regions: the bits of simulated ones, one frame a region, errors with the names of sites."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import geocomm
from geocomm.core.link_table import Links
from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedSites
from geocomm.sync.local_steps.local_steps import LocalSteps, local_steps
from geocomm.sync.local_steps.outer.rounds import Rounds
from geocomm.sync.local_steps.settings.local_settings import LocalSettings, Reduce
from support.harness import Ranks, hash_of
from support.local_models import adamw, make_model, train_steps, values
from support.sent_bytes import CYCLES, FRAGMENTS, FRAME_BYTES, sent_to_sites

SITES = "abcdef"
LINKS = Links.uniform(SITES, regions=("east", "east", "east", "west", "west", ""))
SETTINGS: dict[str, dict[str, Any]] = {
    "all": {"every": 5, "overlap": 2, "codec": "int4", "fragments": 3},
    "aggregator": {"every": 5, "overlap": 2, "codec": "int4", "fragments": 3, "reduce": "aggregator"},
    "exact": {"every": 4, "overlap": 0, "codec": "none", "reduce": "aggregator"},
}


@pytest.fixture(scope="module")
def links_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("links") / "links.json"
    path.write_text(json.dumps(LINKS.to_dict()))
    return path


@pytest.fixture(scope="module")
def ranks(links_file: Path) -> Iterator[Ranks]:
    with Ranks(list(SITES), environment={"GEOCOMM_LINKS": str(links_file)}) as made:
        made.init()
        yield made


def _train(rounds: Rounds | None, site: str, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    model = make_model()
    handle = local_steps(
        model,
        optimizer := adamw(model),
        LocalSettings(exact_below=100, deterministic=True, **settings),
        rounds=rounds,
    )
    train_steps(model, optimizer, site, range(17))
    handle.finish()
    return hash_of(values(model)), handle.stats()


def _train_here(settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return _train(None, os.environ["GEOCOMM_SITE"], settings)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_regions_have_the_bits_of_simulated_ones(ranks: Ranks, settings: dict[str, Any]) -> None:
    simulated = SimulatedSites(SITES, links=LINKS).run(lambda rounds: _train(rounds, rounds.site, settings))
    (bits,) = {after for after, _ in simulated}
    for after, stats in ranks.run(_train_here, settings):
        assert after == bits
        assert stats["rounds"] == simulated[0][1]["rounds"] > 4
    alone = SimulatedSites(SITES).run(lambda rounds: _train(rounds, rounds.site, settings))
    assert (alone[0][0] == bits) is (settings.get("reduce") is None)  # what goes to all only takes another way


@pytest.mark.parametrize("reduce", ["all", "aggregator"])
def test_between_regions_goes_one_frame_of_a_region(ranks: Ranks, reduce: Reduce) -> None:
    region = dict(zip(SITES, ("east", "east", "east", "west", "west", "f"), strict=True))
    found = dict(zip(SITES, ranks.run(sent_to_sites, reduce), strict=True))
    crossed = sum(sent for site, to in found.items() for other, sent in to.items() if region[site] != region[other])
    # all: each site's delta goes to two other regions; aggregator: two sums come, and the average goes to two regions
    frames = 6 * 2 if reduce == "all" else 2 + 2
    assert crossed == pytest.approx(frames * FRAME_BYTES * FRAGMENTS * CYCLES, rel=0.06)


_handle: tuple[nn.Module, torch.optim.Optimizer, LocalSteps]


def _until_d_is_lost(steps: int, lost: bool) -> None:
    global _handle
    site = os.environ["GEOCOMM_SITE"]
    if not lost:
        model = make_model()
        optimizer = adamw(model)
        settings = LocalSettings(every=3, overlap=1, reduce="aggregator")
        _handle = model, optimizer, local_steps(model, optimizer, settings)
    elif site == "d":
        os._exit(9)
    model, optimizer, handle = _handle
    train_steps(model, optimizer, site, range(steps))
    if lost:
        handle.finish()


def test_a_head_that_is_lost_ends_the_run_with_its_name_at_all_sites(links_file: Path) -> None:
    with Ranks(list(SITES), environment={"GEOCOMM_LINKS": str(links_file)}) as ranks:
        ranks.init()
        ranks.run(_until_d_is_lost, 7, False)
        for site, outcome in zip(SITES, ranks.outcomes(_until_d_is_lost, 7, True), strict=True):
            if site == "d":
                assert outcome.exit_code == 9
            else:
                assert "site d" in outcome.require("PeerLostError").message


def _refused() -> str:
    model = make_model()
    try:
        local_steps(model, adamw(model), LocalSettings(every=4, reduce="aggregator", averaging="radial"))
    except geocomm.InvalidArgumentError as error:
        return str(error)
    return "begun"


def test_an_average_that_is_no_mean_of_means_is_refused(ranks: Ranks) -> None:
    for said in ranks.run(_refused):
        assert "averaging='radial' cannot be made of the averages of regions" in said
