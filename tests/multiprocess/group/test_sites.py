"""`geocomm.sites()`: where every rank is, and the one process group of a site, in each life of the default group."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import geocomm
from geocomm.core.errors import InvalidArgumentError
from geocomm.integrations.deepspeed import SiteParallel
from geocomm.sync.local_steps.fixed.group_rounds import GroupRounds
from support.harness import Ranks, ranks_fixture

USERS = (GroupRounds, SiteParallel)
_past: list[weakref.ref[dist.ProcessGroup]] = []

ranks = ranks_fixture({"1+1": ["a", "b"], "2+3 mixed": ["b", "a", "b", "a", "b"], "2": ["a", "a"]})


def _describe() -> dict[str, Any]:
    sites = geocomm.sites()
    return {
        "ranks": dict(zip(sites.names, sites.ranks, strict=True)),
        "own": (sites.rank, sites.index, sites.name, sites.own, sites.place, sites.is_first),
        "same_place": sites.same_place,
        "all": (sites.firsts, sites.common_places, sites.have_equal_sizes, sites.names_of([0])),
        "named": sites.describe(0),
    }


def test_sites_say_where_every_rank_is(ranks: Ranks) -> None:
    names = list(dict.fromkeys(map(str, ranks.sites)))
    ranks_of = {name: tuple(rank for rank, site in enumerate(ranks.sites) if site == name) for name in names}
    sizes = [len(own) for own in ranks_of.values()]
    for rank, found in enumerate(ranks.run(_describe)):
        own = ranks_of[str(ranks.sites[rank])]
        place = own.index(rank)
        assert found["ranks"] == ranks_of
        assert found["own"] == (rank, names.index(str(ranks.sites[rank])), ranks.sites[rank], own, place, place == 0)
        assert found["same_place"] == {name: ranks_of[name][place] for name in names if place < len(ranks_of[name])}
        firsts = tuple(one[0] for one in ranks_of.values())
        assert found["all"] == (firsts, min(sizes), len(set(sizes)) == 1, (ranks.sites[0],))
        alone = len(ranks_of[names[0]]) == 1
        assert found["named"] == (f"site {names[0]!r}" if alone else f"rank 0 of site {names[0]!r}")


def _train_inside() -> list[float]:
    """Gradients are averaged over the ranks of the site."""
    sites = geocomm.sites()
    model = torch.nn.Linear(1, 1, bias=False)
    wrapped = DistributedDataParallel(model, process_group=sites.inside)
    wrapped(torch.tensor([[float(sites.rank)]])).sum().backward()
    gradient = model.weight.grad
    assert gradient is not None
    return [float(gradient), sum(sites.own) / len(sites.own)]


def test_ddp_takes_the_group_of_a_site_whatever_the_sizes(ranks: Ranks) -> None:
    for found, expected in ranks.run(_train_inside):
        assert found == pytest.approx(expected)


def _share(sites: list[str], first: int) -> None:
    """Make one of each user, beginning with the `first`, and use the group after the rounds have closed."""
    own = [rank for rank, site in enumerate(sites) if site == sites[dist.get_rank()]]
    made: dict[type, Any] = {user: user() for user in USERS[first:] + USERS[:first]}
    group = geocomm.sites().inside
    assert made[SiteParallel].site is geocomm.sites().inside is group
    assert dist.get_process_group_ranks(group) == own
    alike = [one for one in dist.distributed_c10d._world.pg_map if dist.get_process_group_ranks(one) == own]
    alone = [made[SiteParallel].get_model_parallel_group()] if len(own) == 1 else []
    assert set(alike) == {group, *alone}
    made[GroupRounds].close()
    dist.all_reduce(total := torch.ones(1), group=group)
    assert total == len(own)
    _past.append(weakref.ref(group))


_kept: list[geocomm.Sites] = []


def _keep() -> None:
    _kept.append(geocomm.sites())


def _require_none() -> None:
    gc.collect()
    assert [past() for past in _past] == [None] * len(_past)
    with pytest.raises(InvalidArgumentError, match="init_process_group"):
        geocomm.sites()
    for kept in _kept:
        with pytest.raises(InvalidArgumentError, match="has ended"):
            _ = kept.inside


@pytest.mark.parametrize("sites", [["a", "b"], ["a", "a", "b"], ["a", "b", "a", "b", "b"]], ids="+".join)
def test_users_share_one_group_as_long_as_the_default_process_group_lives(sites: list[str]) -> None:
    with Ranks(sites) as ranks:
        for first in range(len(USERS)):
            ranks.init()
            ranks.run(_share, sites, first)
            ranks.destroy()
            ranks.run(_require_none)


def test_sites_of_a_process_group_that_has_ended_make_no_group() -> None:
    with Ranks(["a", "b"]) as ranks:
        ranks.init()
        ranks.run(_keep)
        ranks.destroy()
        ranks.run(_require_none)


def _inside_another_backend() -> None:
    dist.new_group(backend="geocomm")
    _require_none()


def test_group_beside_a_default_one_of_another_backend_has_none() -> None:
    with Ranks(["a", "b"]) as ranks:
        ranks.init(backend="gloo")
        ranks.run(_inside_another_backend)
