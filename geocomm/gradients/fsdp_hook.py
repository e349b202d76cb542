"""One call that compresses what FSDP2 reduces between the sites, with error feedback."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from geocomm.errors import InvalidArgumentError, UnsupportedError
from geocomm.gradients.hook_state import HookSettings, HookState, Shard, feedback_settings, require_devices
from geocomm.gradients.named_values import Layout, Slice


def fsdp_hook(
    model: torch.nn.Module,
    codec: str = "balanced",
    *,
    warmup_steps: int = 10,
    exact: Sequence[str] = ("norm",),
    exact_below: int = 4096,
    decay: float = 1.0,
    adaptive: bool = True,
    guard: bool = True,
    guard_steps: int = 50,
) -> HookState:
    """Reduce the gradients of an FSDP2 model between its replicas with `codec` and error feedback.

    model: `fully_shard(…, mesh=geocomm.device_mesh())` on it and what is in it: shards inside the sites, replicas
    across them. Called once, by all ranks alike, after the last `fully_shard` and before the first backward. Inside a
    site FSDP's reduce-scatter goes on as it was; the all-reduce of its result over the replicas is this hook's. The
    handle and the other arguments are those of `ddp_hook`; a parameter's elements are counted before it is sharded.
    Gradients: as reduced, float32, float16 or bfloat16, on CPUs or GPUs, as for `ddp_hook`. With several shards the end
    of a backward blocks the host until its reductions are done, since the shards agree whether the step counts.

    A step is a backward that reduces: `set_requires_all_reduce(False)` and `set_requires_gradient_sync(False)`
    accumulate without one. Where a backward reaches only a part of the parameters that FSDP reduces together, that
    part goes exactly, and what the rest is owed waits. Activation checkpointing: the non-reentrant one.
    Raises InvalidArgumentError, or UnsupportedError on other devices.
    """
    settings = feedback_settings(
        codec, warmup_steps, exact, exact_below, decay, guard_steps if guard else None, adaptive=adaptive
    )
    units = [
        group
        for module in model.modules()
        if isinstance(module, FSDPModule)
        for group in _param_groups(module)
        if group.fsdp_params
    ]
    if not units:
        raise InvalidArgumentError(
            f"fsdp_hook takes a model after torch.distributed.fsdp.fully_shard, not {type(model).__name__}"
        )
    replicas = {_replicas_of(unit) for unit in units}
    if len(replicas) > 1:
        raise UnsupportedError("fsdp_hook takes a model whose fully_shard calls had the same mesh")
    if any(unit._all_reduce_hook is not None for unit in units):
        raise InvalidArgumentError("the model has an all-reduce hook already (fsdp_hook is called once)")
    require_devices("fsdp_hook", (unit.device for unit in units))
    state = FsdpHookState(model, units, replicas.pop(), settings)
    state.take_over()
    return state


def _param_groups(module: FSDPModule) -> list[Any]:
    groups: list[Any] = module._get_fsdp_state()._fsdp_param_groups
    if len(groups) > 1:
        raise UnsupportedError("fsdp_hook takes modules with one mesh for all of their parameters")
    return groups


def _replicas_of(unit: Any) -> dist.ProcessGroup:
    found: dist.ProcessGroup | None = getattr(unit.mesh_info, "replicate_process_group", None)
    if found is None:
        raise InvalidArgumentError(
            "the model has no replicas, whose gradients fsdp_hook would reduce: "
            "fully_shard(…, mesh=geocomm.device_mesh()) shards it inside the sites"
        )
    return found


class FsdpHookState(HookState):
    """What FSDP calls for each group of parameters that it reduces together, in place of its own all-reduce."""

    def __init__(
        self, model: torch.nn.Module, units: Sequence[Any], replicas: dist.ProcessGroup, settings: HookSettings
    ) -> None:
        named = dict(model.named_parameters())
        name_of = {id(parameter): name for name, parameter in named.items()}
        self._units = list(units)
        self._names = [[name_of[id(one.sharded_param)] for one in unit.fsdp_params] for unit in units]
        managed = [
            (name, one)
            for names, unit in zip(self._names, units, strict=True)
            for name, one in zip(names, unit.fsdp_params, strict=True)
        ]
        super().__init__(
            "fsdp",
            replicas,
            {name: named[name] for name, _ in managed},
            settings,
            _shard_of(units[0].mesh_info),
            {name: one.sharded_size.numel() for name, one in managed},
        )
        self._task = -1  # autograd's number of the backward under way
        self._reduced: set[int] = set()  # in it

    def take_over(self) -> None:
        """Leave FSDP no replicas but this rank, and have it call here after its reduce-scatter. Collective."""
        alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        for index, unit in enumerate(self._units):
            # Others may share it, and DTensors are made from what it says.
            unit.mesh_info = copy.copy(unit.mesh_info)
            unit.mesh_info.replicate_process_group = alone
            unit._all_reduce_hook = _Hook(self, index)

    def run(self, index: int, buffer: torch.Tensor) -> None:
        """The mean of the shard over the replicas, in place; the sum where the user has set what to divide by."""
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            self._reduced.clear()
            self.begin_step()
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        layout, numel = self._layout_of(index)
        usual = buffer.numel() == numel and index not in self._reduced
        self._reduced.add(index)
        average = self._units[index].gradient_divide_factor is None
        self.reduce(index, buffer, layout if usual else None, average=average).wait()

    def _end_backward(self) -> None:
        self._task = -1
        self.end_step()

    def _layout_of(self, index: int) -> tuple[Layout, int]:
        slices, offset = [], 0
        for name, one in zip(self._names[index], self._units[index].fsdp_params, strict=True):
            if one.sharded_param.requires_grad:
                slices.append(Slice(name, offset, one.sharded_size.numel(), self.is_exact(name)))
                offset += one.padded_sharded_param_size.numel()
        return tuple(slices), offset


class _Hook:
    """Of one group of parameters."""

    def __init__(self, state: FsdpHookState, index: int) -> None:
        self._state = state
        self._index = index

    def __call__(self, reduce_output: torch.Tensor) -> None:
        self._state.run(self._index, reduce_output)


def _shard_of(mesh_info: Any) -> Shard:
    count = getattr(mesh_info, "shard_mesh_size", 1)
    if count == 1:
        return Shard()
    return Shard(mesh_info.shard_mesh_rank, count, mesh_info.shard_process_group)
