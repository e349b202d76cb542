"""torch's DeviceMesh over the sites."""

from __future__ import annotations

from typing import TYPE_CHECKING

from geocomm.core.errors import InvalidArgumentError
from geocomm.group.backend.sites import sites

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


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
