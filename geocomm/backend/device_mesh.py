"""torch's DeviceMesh over the sites."""

from __future__ import annotations

from typing import TYPE_CHECKING

from geocomm.backend.runtime import runtime
from geocomm.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def device_mesh(device_type: str = "cpu") -> DeviceMesh:
    """A DeviceMesh over all ranks with the dimensions "site" and "local"; device_type: "cpu" or "cuda".

    Collective: every rank of the default process group calls it. Raises InvalidArgumentError where the default process
    group is not geocomm's, or its sites have different numbers of ranks (a mesh is rectangular).
    """
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    if runtime.world is None or runtime.world.backend.closed:
        raise InvalidArgumentError('device_mesh needs the default process group: init_process_group("geocomm") first')
    ranks_of = runtime.world.ranks_of_sites
    if len({len(ranks) for ranks in ranks_of.values()}) > 1:
        sizes = ", ".join(f"{site}: {len(ranks)}" for site, ranks in ranks_of.items())
        raise InvalidArgumentError(f"a mesh needs sites of equal size; ranks per site: {sizes}")
    return DeviceMesh(device_type, torch.tensor(list(ranks_of.values())), mesh_dim_names=("site", "local"))
