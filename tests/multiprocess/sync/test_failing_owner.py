"""A rank that owns a fragment fails while the others of its site wait for it: they hear of that, and end too."""

from __future__ import annotations

import itertools
import time

import pytest
import torch.distributed as dist

from geocomm.sync.local_steps.fixed import site_rounds
from geocomm.sync.local_steps.local_steps import local_steps
from geocomm.sync.local_steps.settings.local_settings import LocalSettings
from support.harness import Ranks, ranks_fixture
from support.local_models import adamw, make_model, train_step

ranks = ranks_fixture({"2+1": ["a", "a", "b"]})
FAILS = 0
"""The rank, which owns all fragments of site a."""


def _train(sites: list[str], where: str) -> str:
    site = sites[dist.get_rank()]
    model = make_model()
    optimizer = adamw(model)
    handle = local_steps(model, optimizer, LocalSettings(exact_below=100, every=6, fragments=2))
    calls = 0
    before = getattr(site_rounds, where)

    def fails(*arguments: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise MemoryError("no room")
        return before(*arguments, **named)

    if dist.get_rank() == FAILS:
        setattr(site_rounds, where, fails)
    store, ended = dist.distributed_c10d._get_default_store(), f"{where} ended"
    try:
        for step in itertools.count():
            train_step(model, optimizer, site, step)
            time.sleep(0.002)
            if site != "a" and store.check([ended]):
                break
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        if site == "a":
            store.set(ended, "")
        setattr(site_rounds, where, before)
        del handle
    return ""


@pytest.mark.parametrize("where", ["merge_local", "take_delta"])
def test_all_ranks_of_a_site_hear_of_the_owner_that_fails(ranks: Ranks, where: str) -> None:
    found = ranks.run(_train, ranks.sites, where)
    assert found[FAILS] == "MemoryError: no room"
    assert "no room (at rank 0 of this site)" in found[1]
