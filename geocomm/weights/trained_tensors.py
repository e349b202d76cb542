"""The tensors of a model that is trained, by their names, and what they are published as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from geocomm.core.errors import InvalidArgumentError
from geocomm.core.zero_cuts import is_cut, whole_shape
from geocomm.weights.rank_shares import is_dtensor
from geocomm.weights.weight_layout import DTYPES, TensorShape

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
        # A rank's shard may be empty, and all ranks have to come to the same names.
        where: tuple[object, ...] = (id(tensor),)
        if not is_dtensor(tensor) and not is_cut(tensor) and tensor.numel():
            where = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        if where in seen:
            continue
        seen.add(where)
        kept[name.replace(_COMPILED, "")] = tensor if is_cut(tensor) else tensor.detach()
    return kept


def sent_shape(name: str, tensor: torch.Tensor, dtype: torch.dtype | None) -> TensorShape:
    """The tensor as it is published; dtype: of those in floating point. Raises InvalidArgumentError."""
    sent = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    if sent not in _NAME_OF:
        raise InvalidArgumentError(f"weights: {name} is {sent}; possible are {', '.join(_NAME_OF.values())}")
    return TensorShape(name, _NAME_OF[sent], tuple(whole_shape(tensor)))
