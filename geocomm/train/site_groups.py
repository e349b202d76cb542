"""The process groups of a run whose sites compute by themselves. Imports torch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch.distributed as dist

from geocomm.backend.runtime import runtime
from geocomm.backend.site_group import site_group
from geocomm.core.errors import InvalidArgumentError


class SiteGroups:
    """The ranks of each site, and the first rank of every site. Sites may have different numbers of ranks.

    To make them is collective.
    """

    def __init__(self) -> None:
        world = runtime.world
        if world is None:
            raise InvalidArgumentError('sites need the default process group: init_process_group("geocomm") first')
        ranks_of = world.ranks_of_sites
        own = world.infos[dist.get_rank()].site or ""
        self.names = list(ranks_of)
        self.ranks = ranks_of[own]
        """Of this rank's site."""
        self._ranks_of = ranks_of
        self.inside = site_group()
        first: Any = dist.new_group([ranks[0] for ranks in ranks_of.values()])
        self.first_ranks: dist.ProcessGroup | None = first if self.is_first else None

    @property
    def have_equal_sizes(self) -> bool:
        """Whether all sites have as many ranks."""
        return len({len(ranks) for ranks in self._ranks_of.values()}) == 1

    def sizes(self, ranks: Collection[int]) -> dict[str, int]:
        """How many ranks each site has that has one of these."""
        return {site: len(own) for site, own in self._ranks_of.items() if set(own) & set(ranks)}

    @property
    def same_place(self) -> list[int]:
        """The ranks that have this one's place in their sites, in the order of `names`."""
        place = self.ranks.index(dist.get_rank())
        return [ranks[place] for ranks in self._ranks_of.values() if place < len(ranks)]

    def same_place_group(self) -> dist.ProcessGroup:
        """A new group of them, where `have_equal_sizes`. Collective over all ranks."""
        groups: list[Any] = [dist.new_group(list(ranks)) for ranks in zip(*self._ranks_of.values(), strict=True)]
        return groups[self.ranks.index(dist.get_rank())]

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first of its site, and speaks for it."""
        return dist.get_rank() == self.ranks[0]
