"""Local steps between real sites: the end, a state, a NaN, where sites are at other steps and in other rounds."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from geocomm.sync.local_steps.local_steps import local_steps
from geocomm.sync.local_steps.settings.local_settings import LocalSettings
from support.harness import Ranks, hash_of, ranks_fixture
from support.local_models import adamw, make_model, train_step, values

ranks = ranks_fixture({"1+1": ["a", "b"], "2+1": ["a", "a", "b"]})


def _at_other_speeds(sites: list[str], steps: int) -> tuple[str, dict[str, Any]]:
    """Site b takes ten times as long for a step. Each saves in the middle, after another step."""
    site = sites[dist.get_rank()]
    model = make_model()
    optimizer = adamw(model)
    handle = local_steps(model, optimizer, LocalSettings(exact_below=100, every=5, fragments=2))
    for step in range(steps if site == "a" else steps // 2):
        train_step(model, optimizer, site, step)
        time.sleep(0.001 if site == "a" else 0.01)
        if step == (7 if site == "a" else 3):
            handle.state_dict()
    handle.finish()
    return hash_of(values(model)), handle.stats()


@pytest.mark.parametrize("steps", [40, 55])
def test_sites_of_other_speeds_end_with_equal_bits(ranks: Ranks, steps: int) -> None:
    found = ranks.run(_at_other_speeds, ranks.sites, steps)
    assert len({(bits, stats["rounds"]) for bits, stats in found}) == 1
    for site, (_, stats) in zip(ranks.sites, found, strict=True):
        assert stats["steps"] == (steps if site == "a" else steps // 2)


def _with_a_nan(sites: list[str]) -> tuple[str, bool, dict[str, Any]]:
    """In one step of site a, at all of its ranks."""
    site = sites[dist.get_rank()]
    model = make_model()
    optimizer = adamw(model)
    handle = local_steps(
        model, optimizer, LocalSettings(exact_below=100, every=6, fragments=2, deterministic=True, overlap=2)
    )
    for step in range(40):
        if site == "a" and step == 13:
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, float("nan"))
            optimizer.step()
        else:
            train_step(model, optimizer, site, step)
    finite = bool(values(model).isfinite().all())
    handle.finish()
    return hash_of(values(model)), finite, handle.stats()


def test_nan_costs_a_site_one_round(ranks: Ranks) -> None:
    found = ranks.run(_with_a_nan, ranks.sites)
    assert len({bits for bits, *_ in found}) == 1
    for site, (_, finite, stats) in zip(ranks.sites, found, strict=True):
        assert finite
        assert stats["rounds_not_finite"] == int(site == "a")
        assert stats["rounds_void"] == 0
