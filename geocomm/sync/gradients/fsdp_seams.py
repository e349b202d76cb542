"""The private parts of torch that `fsdp_hook` stands on, and nothing else of geocomm: FSDP2's groups of parameters, and
the end of a backward of autograd."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from geocomm.core.errors import UnsupportedError
from geocomm.sync.gradients.hook_settings import GradientShard

CHECKED_TORCH = ("2.11", "2.12", "2.13", "2.14", "2.15")
"""The minor versions of torch whose private parts were looked at and run."""

_PARTS_OF_A_GROUP = ("fsdp_params", "device", "mesh_info", "_all_reduce_hook", "gradient_divide_factor")
_PARTS_OF_A_PARAMETER = ("sharded_param", "sharded_size", "padded_sharded_param_size")


def require_known_parts(groups: Iterable[Any], version: str = torch.__version__) -> None:
    """Raise UnsupportedError where FSDP2 lacks what is used here; warn of a torch that was not checked.

    groups: torch's FSDPParamGroups of the model.
    """
    missing = sorted(set(_missing_parts(groups)))
    checked = ", ".join(CHECKED_TORCH)
    if missing:
        raise UnsupportedError(
            f"fsdp_hook uses private parts of FSDP2, which were checked with torch {checked}; torch {version} has no "
            f"{', '.join(missing)}. Use a torch that was checked, or do without the hook: "
            "geocomm.Options(codec='int8') compresses the same all-reduce without error feedback"
        )
    if ".".join(version.split(".")[:2]) not in CHECKED_TORCH:
        warnings.warn(
            f"fsdp_hook was checked with torch {checked}; torch {version} has the same private parts of FSDP2, which "
            "may do something else there. geocomm.check_replicas(model) tells whether the replicas stay equal",
            stacklevel=3,
        )


def _missing_parts(groups: Iterable[Any]) -> Iterator[str]:
    engine = torch.autograd.Variable._execution_engine  # pyright: ignore[reportPrivateUsage]
    graph = torch._C  # pyright: ignore[reportPrivateUsage]
    for owner, name in ((graph, "_current_graph_task_id"), (engine, "queue_callback")):
        if not hasattr(owner, name):
            yield name
    for group in groups:
        yield from (f"FSDPParamGroup.{name}" for name in _PARTS_OF_A_GROUP if not hasattr(group, name))
        for parameter in getattr(group, "fsdp_params", []):
            yield from (f"FSDPParam.{name}" for name in _PARTS_OF_A_PARAMETER if not hasattr(parameter, name))


class ShardedParameter:
    """A parameter as one rank holds it."""

    def __init__(self, sharded: Any) -> None:
        """sharded: torch's FSDPParam."""
        self._sharded = sharded

    @property
    def parameter(self) -> torch.nn.Parameter:
        """What `named_parameters` of the module has."""
        return self._sharded.sharded_param

    @property
    def numel(self) -> int:
        """Elements of this rank's shard."""
        return self._sharded.sharded_size.numel()

    @property
    def padded_numel(self) -> int:
        """Elements that the shard takes in what is reduced."""
        return self._sharded.padded_sharded_param_size.numel()


class ReduceUnit:
    """A group of parameters whose gradients FSDP reduces together."""

    def __init__(self, group: Any) -> None:
        """group: torch's FSDPParamGroup."""
        self._group = group
        self.parameters = [ShardedParameter(one) for one in group.fsdp_params]

    @property
    def device(self) -> torch.device:
        """The device of the gradients."""
        return self._group.device

    @property
    def replicas(self) -> dist.ProcessGroup | None:
        """The ranks that hold the same shard; None where the mesh has no dimension for them."""
        return getattr(self._group.mesh_info, "replicate_process_group", None)

    @property
    def shard(self) -> GradientShard:
        """Which part of the gradients this rank reduces with its replicas."""
        mesh = self._group.mesh_info
        count = getattr(mesh, "shard_mesh_size", 1)
        return GradientShard() if count == 1 else GradientShard(mesh.shard_mesh_rank, count, mesh.shard_process_group)

    @property
    def has_hook(self) -> bool:
        """Whether somebody took over its all-reduce already."""
        return self._group._all_reduce_hook is not None

    @property
    def averages(self) -> bool:
        """Whether the mean is wanted; else the user has set what to divide by."""
        return self._group.gradient_divide_factor is None

    def take_over(self, alone: dist.ProcessGroup, all_reduce: Callable[[torch.Tensor], None]) -> None:
        """Leave FSDP no replicas but this rank, and have it call `all_reduce` after its reduce-scatter."""
        # Others may share it, and DTensors are made from what it says.
        self._group.mesh_info = copy.copy(self._group.mesh_info)
        self._group.mesh_info.replicate_process_group = alone
        self._group._all_reduce_hook = all_reduce


def _param_groups(state: Any) -> list[Any]:
    if hasattr(state, "_fsdp_param_groups"):
        return state._fsdp_param_groups
    one = state._fsdp_param_group  # torch 2.11: a module has one mesh
    return [] if one is None else [one]


def reduce_units(model: torch.nn.Module) -> list[ReduceUnit]:
    """All groups of parameters of the model, in the order of its modules; none before `fully_shard`.

    Raises UnsupportedError for a module whose parameters have several meshes, and for a torch with other private parts.
    """
    found: list[Any] = []
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        groups = _param_groups(module._get_fsdp_state())  # pyright: ignore[reportPrivateUsage]
        if len(groups) > 1:
            raise UnsupportedError("fsdp_hook takes modules with one mesh for all of their parameters")
        found += groups
    require_known_parts(found)
    return [ReduceUnit(group) for group in found if group.fsdp_params]


def backward_number() -> int:
    """The number of the backward under way, in which this is called; no two have the same."""
    return torch._C._current_graph_task_id()  # pyright: ignore[reportPrivateUsage]


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call `callback` when the backward under way has ended."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)  # pyright: ignore[reportPrivateUsage]
