"""Local steps of CUDA modules: two sites, and an elastic run in which a site is killed and comes back.

The ranks share the GPUs that there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedSites
from geocomm.sync.local_steps.local_steps import local_steps
from geocomm.sync.local_steps.outer.rounds import Rounds
from geocomm.sync.local_steps.settings.local_settings import LocalSettings
from support.elastic_training_sites import assert_equal_bits, end_all, rounds_of, training, training_sites
from support.harness import Ranks, hash_of
from support.local_models import adamw, batch, make_model, values

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU and a torch built for it"),
    pytest.mark.timeout(300),
]
SETTINGS: dict[str, dict[str, Any]] = {
    "exact": {"every": 4, "overlap": 0, "codec": "none"},
    "carry": {"every": 3, "overlap": 2, "codec": "int4", "fragments": 3, "exact_below": 100},
}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(["a", "b"], time_limit=180) as ranks:
        ranks.init()
        yield ranks
        ranks.destroy()


def train(rounds: Rounds | None, site: str, settings: dict[str, Any]) -> tuple[str, str, int]:
    """The bits of the anchor on the way and of the result, and the rounds."""
    model = make_model().cuda()
    optimizer = adamw(model)
    handle = local_steps(model, optimizer, LocalSettings(deterministic=True, **settings), rounds=rounds)
    for step in range(17):
        if step == 13:
            with handle.anchor():
                anchor = hash_of(values(model).cpu())
        inputs, targets = batch(site, step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs.cuda()), targets.cuda()).backward()
        optimizer.step()
    handle.finish()
    return anchor, hash_of(values(model).cpu()), handle.stats()["rounds"]


def train_rank(sites: list[str], settings: dict[str, Any]) -> tuple[str, str, int]:
    return train(None, sites[dist.get_rank()], settings)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_sites_of_cuda_modules_have_the_bits_of_simulated_ones(ranks: Ranks, settings: dict[str, Any]) -> None:
    expected = SimulatedSites("ab").run(lambda rounds: train(rounds, rounds.site, settings))
    found = ranks.run(train_rank, ranks.sites, settings)
    assert found == expected
    assert found[0] == found[1]
    assert found[0][2] >= 4


def test_an_elastic_run_of_cuda_modules_outlives_a_site_that_comes_back(tmp_path: Path) -> None:
    with training_sites(tmp_path, "abc") as sites:
        for name, site in sites.items():
            training(sites, name).wrap = "cuda"
            site.start()
        sites.until(lambda: len(rounds_of(sites, "c", "a")) >= 4, "four rounds with c")
        sites["c"].kill_rank()
        sites["c"].kill_agent()
        before = len(sites["a"].rounds())
        sites.until(lambda: len(sites["a"].rounds()) >= before + 4, "rounds after the kill")
        sites["c"].start()
        counted = len(rounds_of(sites, "c", "a"))
        sites.until(lambda: len(rounds_of(sites, "c", "a")) >= counted + 2, "c counts again")
        end_all(sites, tmp_path)
        assert_equal_bits(sites)
        assert len({training(sites, name).steps()[-1]["end"] for name in "abc"}) == 1
