"""Which ranks are at which site: one value for all that works with sites, and torch's DeviceMesh over them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from geocomm.core.errors import InvalidArgumentError
from geocomm.group.backend.runtime import Group, runtime
from geocomm.group.membership.rank_record import sites_of

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

_MARGIN = timedelta(minutes=1)
"""A rank that waits for another site tells the others of its own site of an error, even one that comes at the last
moment."""


@dataclass(frozen=True)
class Sites:
    """The ranks of the default process group by site, from `geocomm.sites()`.

    Sites may have different numbers of ranks. The *place* of a rank is its index among the ranks of its site. `names`
    and `ranks` are equal on every rank; `name`, `own`, `place` and `inside` are those of this rank.
    """

    names: tuple[str, ...]
    """The names of the sites, in the order of their lowest ranks."""
    ranks: tuple[tuple[int, ...], ...]
    """The ranks of each site, ascending."""
    rank: int
    """This rank."""
    _group: Group = field(repr=False, compare=False)

    @property
    def index(self) -> int:
        """The index of this rank's site in `names` and `ranks`."""
        return next(index for index, ranks in enumerate(self.ranks) if self.rank in ranks)

    @property
    def name(self) -> str:
        """The name of this rank's site."""
        return self.names[self.index]

    @property
    def own(self) -> tuple[int, ...]:
        """The ranks of this rank's site, ascending."""
        return self.ranks[self.index]

    @property
    def place(self) -> int:
        """The index of this rank in `own`."""
        return self.own.index(self.rank)

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first of its site."""
        return self.place == 0

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first rank of every site, in the order of `names`."""
        return tuple(ranks[0] for ranks in self.ranks)

    @property
    def common_places(self) -> int:
        """How many ranks the smallest site has: every site has a rank at the places from 0 to one below it."""
        return min(map(len, self.ranks))

    @property
    def have_equal_sizes(self) -> bool:
        """Whether all sites have the same number of ranks."""
        return len({len(ranks) for ranks in self.ranks}) == 1

    @property
    def same_place(self) -> dict[str, int]:
        """The rank at this rank's place, itself included, by site, as far as a site has one."""
        place = self.place
        return {name: ranks[place] for name, ranks in zip(self.names, self.ranks, strict=True) if place < len(ranks)}

    @property
    def inside(self) -> dist.ProcessGroup:
        """The process group of the ranks of this rank's site.

        The first use makes the group: every rank of the default process group has to ask for it at the same point of
        its program. A rank then waits for the ranks of its own site alone. Later uses are local and give the same
        group. It ends with the default process group; do not destroy it.

        Raises:
            InvalidArgumentError: The default process group has ended.
        """
        from geocomm.core.typed_torch import new_group

        if runtime.world is not self._group or self._group.backend.closed:
            raise InvalidArgumentError("the process group that these sites belong to has ended; call sites() again")
        if self._group.inside is not None:
            return self._group.inside
        timeout = self._group.timeout + _MARGIN
        made = [  # torch names a group by its number, which every rank has to count
            new_group(ranks, timeout, backend="geocomm", group_desc=f"geocomm site {name}")
            for name, ranks in zip(self.names, self.ranks, strict=True)
        ]
        own = made[self.index]
        self._group.inside = own
        return own

    def names_of(self, ranks: Collection[int]) -> tuple[str, ...]:
        """The names of the sites that have these ranks.

        Args:
            ranks: Ranks of the default process group.

        Returns:
            The names, each once, in the order of `names`.
        """
        return tuple(name for name, own in zip(self.names, self.ranks, strict=True) if set(own) & set(ranks))

    def describe(self, rank: int) -> str:
        """Name a rank for a message.

        Args:
            rank: A rank of the default process group.

        Returns:
            The name of the rank's site, and the rank's number if the site has other ranks.
        """
        for name, ranks in zip(self.names, self.ranks, strict=True):
            if rank in ranks:
                return f"site {name!r}" if len(ranks) == 1 else f"rank {rank} of site {name!r}"
        return f"rank {rank}"


def sites() -> Sites:
    """The sites of the default process group, with the ranks of each.

    Local: no rank waits for another.

    Returns:
        The same names and ranks on every rank.

    Raises:
        InvalidArgumentError: The default process group is not geocomm's, or there is none.

    Example:
        A sum over the ranks of this rank's site:

            here = geocomm.sites()
            dist.all_reduce(tensor, group=here.inside)
    """
    world = runtime.world
    if world is None or world.backend.closed:
        raise InvalidArgumentError(
            'sites need the default process group: init_process_group("geocomm") comes before sites()'
        )
    site_of_rank, names = sites_of(world.infos)
    ranks = tuple(tuple(rank for rank, site in enumerate(site_of_rank) if site == own) for own in range(len(names)))
    return Sites(tuple(names), ranks, world.backend.rank(), world)


def device_mesh(device_type: str | None = None) -> DeviceMesh:
    """Make a DeviceMesh over all ranks with the dimensions "site" and "local".

    Collective: every rank of the default process group calls it.

    Args:
        device_type: where the tensors on the mesh live: "cpu" or "cuda". None: on the accelerator that torch sees
            here, else on the CPU.

    Returns:
        A mesh of shape (number of sites, ranks per site). `mesh["site"]` has the ranks at this rank's place of every
        site, `mesh["local"]` the ranks of its site.

    Raises:
        InvalidArgumentError: The default process group is not geocomm's, or its sites have different numbers of ranks:
            a mesh is rectangular.

    Example:
        Shards inside each site, replicas between the sites:

            mesh = geocomm.device_mesh()
            fully_shard(model, mesh=mesh)
    """
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    found = sites()
    if not found.have_equal_sizes:
        sizes = ", ".join(f"{name}: {len(ranks)}" for name, ranks in zip(found.names, found.ranks, strict=True))
        raise InvalidArgumentError(f"a mesh needs sites of equal size; ranks per site: {sizes}")
    return DeviceMesh(device_type or _type_here(), torch.tensor(found.ranks), mesh_dim_names=("site", "local"))


def _type_here() -> str:
    """The type of torch's accelerator; "cpu" without one."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if accelerator is None else accelerator.type
