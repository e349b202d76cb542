"""The tensors of a model that is trained, and what this rank has of each: of a DTensor its own shard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from geocomm.core.errors import InvalidArgumentError
from geocomm.weights.weight_layout import DTYPES, Box, TensorShape

Tensors = torch.nn.Module | Mapping[str, torch.Tensor]
_COMPILED = "_orig_mod."
"""What torch.compile puts before the names of a module."""
_NAME_OF = {dtype: name for name, dtype in DTYPES.items()}


def named_tensors(source: Tensors) -> dict[str, torch.Tensor]:
    """By name, as the model is called without wrappers such as DDP; of two names for one tensor, such as tied
    embeddings, the first. Raises InvalidArgumentError."""
    while isinstance(source, DistributedDataParallel) or type(source).__name__ == "DeepSpeedEngine":
        wrapper: Any = source
        source = wrapper.module
    found: Mapping[str, Any] = source.state_dict(keep_vars=True) if isinstance(source, torch.nn.Module) else source
    kept: dict[str, torch.Tensor] = {}
    seen: set[tuple[object, ...]] = set()
    for name, tensor in found.items():
        if not isinstance(tensor, torch.Tensor):
            if isinstance(source, torch.nn.Module):
                continue  # what get_extra_state says
            raise InvalidArgumentError(f"weights: {name} is no tensor")
        if hasattr(tensor, "ds_id"):
            raise InvalidArgumentError(
                f"weights: {name} is partitioned by ZeRO-3; gather it first (deepspeed.zero.GatheredParameters), or "
                "use FSDP2, whose shards are published as they are"
            )
        # A rank's shard may be empty, and all ranks have to come to the same names.
        where: tuple[object, ...] = (id(tensor),)
        if not is_dtensor(tensor) and tensor.numel():
            where = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        if where in seen:
            continue
        seen.add(where)
        kept[name.replace(_COMPILED, "")] = tensor.detach()
    return kept


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of it, as a plain tensor."""
    untyped: Any = tensor
    return untyped.to_local().detach() if is_dtensor(tensor) else tensor.detach()


def sent_shape(name: str, tensor: torch.Tensor, dtype: torch.dtype | None) -> TensorShape:
    """The tensor as it is published; dtype: of those in floating point. Raises InvalidArgumentError."""
    sent = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    if sent not in _NAME_OF:
        raise InvalidArgumentError(f"weights: {name} is {sent}; possible are {', '.join(_NAME_OF.values())}")
    return TensorShape(name, _NAME_OF[sent], tuple(tensor.shape))


def own_box(index: int, name: str, tensor: torch.Tensor, *, leads: bool) -> Box | None:
    """What this rank publishes of the tensor: its shard, where no rank before it has the same; of a plain tensor, all,
    where it leads. Raises InvalidArgumentError for placements that are no rectangles."""
    if not is_dtensor(tensor):
        whole = Box(index, (0,) * tensor.dim(), tuple(tensor.shape))
        return whole if leads and whole.elements else None
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    untyped: Any = tensor
    for placement in untyped.placements:
        if type(placement) not in (Replicate, Shard):
            raise InvalidArgumentError(
                f"weights: {name} is placed as {placement}; Replicate and Shard can be published"
            )
    coordinate = untyped.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    if any(at for at, placement in zip(coordinate, untyped.placements, strict=True) if type(placement) is Replicate):
        return None
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, untyped.device_mesh, untyped.placements)
    local = local_part(tensor)
    if tuple(local.shape) != tuple(sizes):
        raise InvalidArgumentError(f"weights: this rank has {[*local.shape]} of {name}, and its shard is {[*sizes]}")
    return Box(index, tuple(offsets), tuple(sizes)) if local.numel() else None


def publishing_ranks(tensors: Mapping[str, torch.Tensor]) -> list[int]:
    """The ranks that have shards of these, in order; empty: all are plain."""
    found: set[int] = set()
    for tensor in tensors.values():
        if is_dtensor(tensor):
            untyped: Any = tensor
            found.update(untyped.device_mesh.mesh.flatten().tolist())
    return sorted(found)


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Whether ranks have shards of it."""
    return hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")
