"""The one process group of a site: all that works inside the site shares it, in each life of the default group."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist

from geocomm.backend.site_group import site_group
from geocomm.core.errors import InvalidArgumentError
from geocomm.integrations.deepspeed import SiteParallel
from geocomm.local_sgd.group_rounds import GroupRounds
from geocomm.train.site_groups import SiteGroups
from support.harness import Ranks

USERS = (GroupRounds, SiteParallel, SiteGroups)
_past: list[weakref.ref[dist.ProcessGroup]] = []


def _share(sites: list[str], first: int) -> None:
    """Make one of each user, beginning with the `first`, and use the group after the rounds have closed."""
    own = [rank for rank, site in enumerate(sites) if site == sites[dist.get_rank()]]
    made: dict[type, Any] = {user: user() for user in USERS[first:] + USERS[:first]}
    group = site_group()
    assert made[SiteParallel].site is made[SiteGroups].inside is group
    assert dist.get_process_group_ranks(group) == own
    alike = [one for one in dist.distributed_c10d._world.pg_map if dist.get_process_group_ranks(one) == own]
    alone = [made[SiteParallel].get_model_parallel_group()] if len(own) == 1 else []
    assert set(alike) == {group, *alone}
    made[GroupRounds].close()
    dist.all_reduce(total := torch.ones(1), group=group)
    assert total == len(own)
    _past.append(weakref.ref(group))


def _require_none() -> None:
    gc.collect()
    assert [past() for past in _past] == [None] * len(_past)
    with pytest.raises(InvalidArgumentError, match="init_process_group"):
        site_group()


@pytest.mark.parametrize("sites", [["a", "b"], ["a", "a", "b"], ["a", "b", "a", "b", "b"]], ids="+".join)
def test_users_share_one_group_as_long_as_the_default_process_group_lives(sites: list[str]) -> None:
    with Ranks(sites) as ranks:
        for first in range(len(USERS)):
            ranks.init()
            ranks.run(_share, sites, first)
            ranks.destroy()
            ranks.run(_require_none)


def _inside_another_backend() -> None:
    dist.new_group(backend="geocomm")
    _require_none()


def test_group_beside_a_default_one_of_another_backend_has_none() -> None:
    with Ranks(["a", "b"]) as ranks:
        ranks.init(backend="gloo")
        ranks.run(_inside_another_backend)
