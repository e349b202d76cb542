"""The process groups of a run whose sites compute by themselves. Imports torch."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from geocomm.backend.runtime import runtime
from geocomm.core.errors import InvalidArgumentError


class SiteParallel:
    """DeepSpeed's `mpu` for data parallel inside a site, each site by itself."""

    def __init__(self, site: dist.ProcessGroup) -> None:
        """site: the ranks of this rank's site."""
        self.site = site
        self._alone: Any = dist.new_group([dist.get_rank()], use_local_synchronization=True)

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        return self.site

    def get_data_parallel_world_size(self) -> int:
        return self.site.size()

    def get_data_parallel_rank(self) -> int:
        return self.site.rank()

    def get_data_parallel_group_ranks(self) -> list[int]:
        return dist.get_process_group_ranks(self.site)

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        return self._alone

    def get_model_parallel_world_size(self) -> int:
        return 1

    def get_model_parallel_rank(self) -> int:
        return 0


class SiteGroups:
    """The ranks of each site, and the first rank of every site. Sites may have different numbers of ranks.

    To make them is collective.
    """

    def __init__(self) -> None:
        world = runtime.world
        if world is None:
            raise InvalidArgumentError('sites need the default process group: init_process_group("geocomm") first')
        ranks_of: dict[str, list[int]] = {}
        for info in world.infos:
            ranks_of.setdefault(info.site or "", []).append(info.rank)
        own = world.infos[dist.get_rank()].site or ""
        self.names = list(ranks_of)
        self.ranks = ranks_of[own]
        """Of this rank's site."""
        groups: dict[str, Any] = {site: dist.new_group(ranks) for site, ranks in ranks_of.items()}
        self.inside: dist.ProcessGroup = groups[own]
        first: Any = dist.new_group([ranks[0] for ranks in ranks_of.values()])
        self.first_ranks: dist.ProcessGroup | None = first if self.is_first else None

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first of its site, and speaks for it."""
        return dist.get_rank() == self.ranks[0]
