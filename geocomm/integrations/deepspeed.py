"""DeepSpeed inside a site: data parallel over its ranks, each site by itself."""

from __future__ import annotations

import torch.distributed as dist

from geocomm.core.typed_torch import new_group
from geocomm.group.backend.sites import sites


class SiteParallel:
    """DeepSpeed's `mpu` whose data parallel group is the ranks of this rank's site; no model parallelism.

    Collective: every rank of the default process group makes one at the same point of its program. Sites may have
    different numbers of ranks.

    Args:
        site: A process group of the ranks of this rank's site; None: `geocomm.sites().inside`.

    Raises:
        InvalidArgumentError: The default process group is not geocomm's.

    Example:
        ZeRO inside each site, local steps between the sites:

            engine, *_ = deepspeed.initialize(model=model, mpu=SiteParallel(), dist_init_required=False, ...)
            outer = geocomm.local_steps(engine, engine.optimizer)
    """

    def __init__(self, site: dist.ProcessGroup | None = None) -> None:
        self.site = sites().inside if site is None else site
        self._alone = new_group([dist.get_rank()], use_local_synchronization=True)

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        """The ranks of the site."""
        return self.site

    def get_data_parallel_world_size(self) -> int:
        """The number of ranks of the site."""
        return self.site.size()

    def get_data_parallel_rank(self) -> int:
        """The index of this rank in the group of its site."""
        return self.site.rank()

    def get_data_parallel_group_ranks(self) -> list[int]:
        """The ranks of the site, as ranks of the default process group."""
        return dist.get_process_group_ranks(self.site)

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        """A group of this rank alone."""
        return self._alone

    def get_model_parallel_world_size(self) -> int:
        """The number of ranks that share a model: 1."""
        return 1

    def get_model_parallel_rank(self) -> int:
        """The index of this rank among those that share a model: 0."""
        return 0
