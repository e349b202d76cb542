"""The process group of the ranks of a site, made once for all that works inside it. Imports torch."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from geocomm.backend.runtime import runtime
from geocomm.core.errors import InvalidArgumentError


def site_group() -> dist.ProcessGroup:
    """The ranks of this rank's site. Sites may have different numbers of ranks.

    Every rank of the default process group calls it, at the same point of its program. The first call is collective
    over all of them: torch makes a group with every rank, in it or not, and each site gets one. Later calls are local
    and give the same group. It ends with the default process group; who asks for it does not destroy it.

    Raises InvalidArgumentError where the default process group is not geocomm's.
    """
    world = runtime.world
    if world is None or world.backend.closed:
        raise InvalidArgumentError(
            'the group of a site needs the default process group: init_process_group("geocomm") before it'
        )
    if world.site_group is not None:
        return world.site_group
    own: Any
    own, _ = dist.new_subgroups_by_enumeration(list(world.ranks_of_sites.values()))
    world.site_group = own
    return own
