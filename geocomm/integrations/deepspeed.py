"""DeepSpeed inside a site: data parallel over its ranks, each site by itself.

from geocomm.integrations.deepspeed import SiteParallel
engine, *_ = deepspeed.initialize(model=model, mpu=SiteParallel(), dist_init_required=False, ...)
outer = geocomm.local_steps(engine, engine.optimizer)
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from geocomm.backend.sites import sites


class SiteParallel:
    """DeepSpeed's `mpu` whose data parallel group is the ranks of this rank's site; no model parallelism.

    To make one is collective over all ranks. Sites may have different numbers of ranks.
    """

    def __init__(self, site: dist.ProcessGroup | None = None) -> None:
        """site: the ranks of this rank's site; default: the group of them that all of geocomm shares, which ends with
        the default process group.

        Raises InvalidArgumentError where the default process group is not geocomm's.
        """
        self.site = sites().inside if site is None else site
        alone: Any = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        self._alone: dist.ProcessGroup = alone

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
