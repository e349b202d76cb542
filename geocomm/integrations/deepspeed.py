"""DeepSpeed inside a site: data parallel over its ranks, each site by itself.

from geocomm.integrations.deepspeed import SiteParallel
engine, *_ = deepspeed.initialize(model=model, mpu=SiteParallel(), dist_init_required=False, ...)
outer = geocomm.local_steps(engine, engine.optimizer)
"""

from __future__ import annotations

import torch.distributed as dist

from geocomm.backend.runtime import runtime
from geocomm.core.errors import InvalidArgumentError


class SiteParallel:
    """DeepSpeed's `mpu` whose data parallel group is the ranks of this rank's site; no model parallelism.

    To make one is collective over all ranks. Sites may have different numbers of ranks.
    """

    def __init__(self, site: dist.ProcessGroup | None = None) -> None:
        """site: the ranks of this rank's site; default: a new group of them.

        Raises InvalidArgumentError where the default process group is not geocomm's.
        """
        self.site = _new_site_group() if site is None else site
        self._alone = _own(dist.new_group([dist.get_rank()], use_local_synchronization=True))

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        """The ranks of the site."""
        return self.site

    def get_data_parallel_world_size(self) -> int:
        """How many they are."""
        return self.site.size()

    def get_data_parallel_rank(self) -> int:
        """Which of them this rank is."""
        return self.site.rank()

    def get_data_parallel_group_ranks(self) -> list[int]:
        """Their ranks in the default process group."""
        return dist.get_process_group_ranks(self.site)

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        """This rank alone."""
        return self._alone

    def get_model_parallel_world_size(self) -> int:
        """1."""
        return 1

    def get_model_parallel_rank(self) -> int:
        """0."""
        return 0


def _new_site_group() -> dist.ProcessGroup:
    world = runtime.world
    if world is None or world.backend.closed:
        raise InvalidArgumentError(
            'SiteParallel needs the default process group: init_process_group("geocomm") before it'
        )
    ranks_of = world.ranks_of_sites
    groups = {site: dist.new_group(ranks) for site, ranks in ranks_of.items()}
    return _own(groups[world.infos[dist.get_rank()].site or ""])


def _own(group: object) -> dist.ProcessGroup:
    """A group that this rank is in."""
    if not isinstance(group, dist.ProcessGroup):
        raise InvalidArgumentError("this rank is not in a group of its own site")
    return group
