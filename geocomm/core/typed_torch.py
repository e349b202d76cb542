"""Functions of torch that it leaves partly without types, with types."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    import numpy as np

_dist = cast(Any, dist)


def barrier() -> None:
    """dist.barrier of the default group."""
    _dist.barrier()


def all_gather(gathered: list[torch.Tensor], own: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """dist.all_gather: fills `gathered`, in order of the ranks."""
    _dist.all_gather(gathered, own, group=group)


def all_gather_object(gathered: list[Any], own: object, group: dist.ProcessGroup | None = None) -> None:
    """dist.all_gather_object: fills `gathered`, in order of the ranks."""
    _dist.all_gather_object(gathered, own, group=group)


def all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: dist.ProcessGroup | None = None) -> None:
    """dist.all_reduce, in place; waits for it."""
    _dist.all_reduce(tensor, op, group=group)


def begin_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> dist.Work:
    """dist.all_reduce with async_op, by a rank of the group."""
    return _dist.all_reduce(tensor, group=group, async_op=True)


def future_of(work: dist.Work) -> torch.futures.Future[Any]:
    """work.get_future()."""
    return cast(Any, work).get_future()


def device_of_group(group: dist.ProcessGroup | None = None) -> str:
    """The device on which small tensors of the host are reduced. What `get_backend` says may be what a script asked for
    (group/backend/in_place.py)."""
    own = cast(Any, group or dist.group.WORLD)
    return "cpu" if torch.device("cpu") in own._device_types else "cuda"


def default_store() -> dist.Store:
    """The store that the default process group was made with."""
    return cast(Any, dist).distributed_c10d._get_default_store()


def from_numpy(values: np.ndarray) -> torch.Tensor:
    """torch.from_numpy: a tensor over the same memory."""
    return cast(Any, torch).from_numpy(values)


def new_group(ranks: Sequence[int], timeout: timedelta | None = None, **named: Any) -> dist.ProcessGroup:
    """dist.new_group; for a rank outside `ranks`, torch's value that stands for no group."""
    return _dist.new_group(list(ranks), timeout=timeout, **named)


def norm(tensor: torch.Tensor) -> float:
    """tensor.norm(): the L2 norm."""
    return float(cast(Any, tensor).norm())


def split(tensor: torch.Tensor, sizes: int | Sequence[int]) -> tuple[torch.Tensor, ...]:
    """tensor.split(sizes)."""
    return cast(Any, tensor).split(sizes)


def to_list(tensor: torch.Tensor) -> list[Any]:
    """tensor.tolist() of a tensor that has dimensions."""
    return cast(Any, tensor).tolist()
