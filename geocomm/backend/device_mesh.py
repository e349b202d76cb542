"""torch's DeviceMesh over the sites."""

from __future__ import annotations

from typing import TYPE_CHECKING

from geocomm.backend.sites import sites
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

    found = sites()
    if not found.have_equal_sizes:
        sizes = ", ".join(f"{name}: {len(ranks)}" for name, ranks in zip(found.names, found.ranks, strict=True))
        raise InvalidArgumentError(f"a mesh needs sites of equal size; ranks per site: {sizes}")
    return DeviceMesh(device_type, torch.tensor(found.ranks), mesh_dim_names=("site", "local"))
