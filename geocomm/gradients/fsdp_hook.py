"""One call that compresses what FSDP2 reduces between the sites, with error feedback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from geocomm.core.errors import InvalidArgumentError, UnsupportedError
from geocomm.gradients.fsdp_seams import (
    ReduceUnit,
    at_end_of_backward,
    backward_number,
    reduce_units,
    require_checked_torch,
)
from geocomm.gradients.gradient_hook import GradientHook
from geocomm.gradients.gradient_reducer import GradientReducer
from geocomm.gradients.hook_settings import HookSettings, feedback_settings, require_devices
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
) -> GradientHook:
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
    Raises InvalidArgumentError, or UnsupportedError on other devices and with a torch that it was not checked with.
    """
    settings = feedback_settings(
        codec, warmup_steps, exact, exact_below, decay, guard_steps if guard else None, adaptive=adaptive
    )
    require_checked_torch()
    units = list(reduce_units(model))
    if not units:
        raise InvalidArgumentError(
            f"fsdp_hook takes a model after torch.distributed.fsdp.fully_shard, not {type(model).__name__}"
        )
    replicas = {_replicas_of(unit) for unit in units}
    if len(replicas) > 1:
        raise UnsupportedError("fsdp_hook takes a model whose fully_shard calls had the same mesh")
    if any(unit.has_hook for unit in units):
        raise InvalidArgumentError("the model has an all-reduce hook already (fsdp_hook is called once)")
    require_devices("fsdp_hook", (unit.device for unit in units))
    adapter = FsdpAdapter(model, units, replicas.pop(), settings)
    adapter.take_over()
    return GradientHook(adapter.reducer)


def _replicas_of(unit: ReduceUnit) -> dist.ProcessGroup:
    if unit.replicas is None:
        raise InvalidArgumentError(
            "the model has no replicas, whose gradients fsdp_hook would reduce: "
            "fully_shard(…, mesh=geocomm.device_mesh()) shards it inside the sites"
        )
    return unit.replicas


class FsdpAdapter:
    """Feeds a reducer with the groups of parameters that FSDP reduces together, in place of its own all-reduce."""

    def __init__(
        self, model: torch.nn.Module, units: Sequence[ReduceUnit], replicas: dist.ProcessGroup, settings: HookSettings
    ) -> None:
        named = dict(model.named_parameters())
        name_of = {id(parameter): name for name, parameter in named.items()}
        self._units = list(units)
        self._names = [[name_of[id(one.parameter)] for one in unit.parameters] for unit in units]
        numel_of = {
            name: one.numel
            for names, unit in zip(self._names, units, strict=True)
            for name, one in zip(names, unit.parameters, strict=True)
        }
        parameters = {name: named[name] for name in numel_of}
        self.reducer = GradientReducer("fsdp", replicas, parameters, settings, units[0].shard, numel_of)
        self._backward = -1  # the one under way
        self._reduced: set[int] = set()  # in it

    def take_over(self) -> None:
        """Have FSDP call here after its reduce-scatter, in place of its all-reduce over the replicas. Collective."""
        alone: Any = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        for index, unit in enumerate(self._units):
            unit.take_over(alone, _Hook(self, index))

    def run(self, index: int, buffer: torch.Tensor) -> None:
        """The mean of the shard over the replicas, in place; the sum where the user has set what to divide by."""
        backward = backward_number()
        if backward != self._backward:
            self._backward = backward
            self._reduced.clear()
            self.reducer.begin_step()
            at_end_of_backward(self._end_backward)
        layout, numel = self._layout_of(index)
        usual = buffer.numel() == numel and index not in self._reduced
        self._reduced.add(index)
        self.reducer.reduce(index, buffer, layout if usual else None, average=self._units[index].averages).wait()

    def _end_backward(self) -> None:
        self._backward = -1
        self.reducer.end_step()

    def _layout_of(self, index: int) -> tuple[Layout, int]:
        slices, offset = [], 0
        for name, one in zip(self._names[index], self._units[index].parameters, strict=True):
            if one.parameter.requires_grad:
                slices.append(Slice(name, offset, one.numel, self.reducer.is_exact(name)))
                offset += one.padded_numel
        return tuple(slices), offset


class _Hook:
    """What FSDP calls for one group of parameters."""

    def __init__(self, adapter: FsdpAdapter, index: int) -> None:
        self._adapter = adapter
        self._index = index

    def __call__(self, reduce_output: torch.Tensor) -> None:
        self._adapter.run(self._index, reduce_output)
