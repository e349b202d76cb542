"""How DeepSpeed's ZeRO 3 has cut a parameter, by what it writes on it; DeepSpeed is not imported."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def is_cut(parameter: Any) -> bool:
    """Whether ZeRO 3 has cut a parameter: each rank has a run of its elements, in `ds_tensor`."""
    return hasattr(parameter, "ds_tensor")


def own_run(parameter: Any) -> tuple[int, int]:
    """Which elements [start, stop) of a parameter that ZeRO 3 has cut this rank has; what it appends is no part."""
    most = parameter.ds_tensor.ds_numel
    start = min(most * dist.get_rank(parameter.ds_process_group), parameter.ds_numel)
    return start, min(start + most, parameter.ds_numel)


def whole_shape(parameter: Any) -> torch.Size:
    """The whole shape of a parameter, also of one that ZeRO 3 has cut."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))
