"""The first steps of a run with local steps, in which the sites stay equal. Imports torch and deepspeed."""

from __future__ import annotations

from typing import Any

import deepspeed
import torch.distributed as dist

# DDP shares its first weights with it.
from torch.distributed.utils import _sync_module_states  # pyright: ignore[reportPrivateUsage]

from geocomm.group.backend.sites import Sites
from geocomm.integrations.deepspeed_seams import (
    follow_masters,
    give_back_reduction,
    masters,
    reduce_over,
    reduce_shards_over,
    take_over_reduction,
)

_BROADCAST_BYTES = 64 << 20


class JointSteps:
    """Averages an engine's gradients over all ranks.

    ZeRO 0: where DeepSpeed would reduce them. ZeRO 1 and 2, at sites of equal size: over the ranks that hold the same
    shard, after DeepSpeed has reduced it inside the site. To make one is collective.
    """

    def __init__(self, engine: deepspeed.DeepSpeedEngine, sites: Sites) -> None:
        self._engine = engine
        world: Any = dist.group.WORLD
        self._is_sharded = engine.zero_optimization_stage() > 0
        self._replicas = _same_place_group(sites) if self._is_sharded else world
        """The ranks that hold the same masters."""
        self._source = next(iter(sites.same_place.values())) if self._is_sharded else 0
        """The one of them that is at rank 0's site."""
        if not self._is_sharded:
            take_over_reduction(engine, lambda: reduce_over(engine, world))

    def before_update(self) -> None:
        """Reduce shards; called between the last backward of an accumulation and `engine.step()`."""
        if self._is_sharded:
            reduce_shards_over(self._engine, self._replicas)

    def end(self) -> None:
        """Give all sites the weights and masters of rank 0's. Collective over all ranks.

        Equal gradients leave unequal last bits where sites have other hardware, or clip over other numbers of ranks.
        """
        under_way: list[Any] = [
            dist.broadcast(one, self._source, group=self._replicas, async_op=True) for one in masters(self._engine)
        ]
        for each in under_way:
            each.wait()
        if self._is_sharded:
            follow_masters(self._engine)
        else:
            give_back_reduction(self._engine)
            share_weights(self._engine.module)


def _same_place_group(sites: Sites) -> dist.ProcessGroup:
    """A new group of the ranks at this rank's place, where all sites have the same number of ranks. Collective over all
    ranks."""
    groups: list[Any] = [dist.new_group(list(ranks)) for ranks in zip(*sites.ranks, strict=True)]
    return groups[sites.place]


def share_weights(model: Any) -> None:
    """Give all ranks the whole parameters and the buffers of rank 0. Collective over all ranks."""
    world: Any = dist.group.WORLD
    _sync_module_states(model, world, _BROADCAST_BYTES, 0, ())
