"""One call that compresses what FSDP2 reduces between the sites, with error feedback."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.distributed as dist

from geocomm.core.errors import InvalidArgumentError, UnsupportedError
from geocomm.core.typed_torch import new_group
from geocomm.sync.gradients.device_order import require_devices
from geocomm.sync.gradients.fsdp_seams import (
    ReduceUnit,
    at_end_of_backward,
    backward_number,
    reduce_units,
)
from geocomm.sync.gradients.gradient_hook import GradientHook
from geocomm.sync.gradients.hook_settings import HookSettings, ReductionPlan
from geocomm.sync.gradients.named_values import Layout, Slice


def fsdp_hook(model: torch.nn.Module, settings: HookSettings | str = "balanced") -> GradientHook:
    """Reduce the gradients of an FSDP2 model between its replicas with a codec and error feedback.

    Call it once, at all ranks alike, after the last `fully_shard` and before the first backward. Inside a site FSDP's
    reduce-scatter stays as it was; the hook replaces the all-reduce of its result over the replicas. What `ddp_hook`
    says of stored errors and GPUs holds here too. With several shards the end of a backward blocks the host until its
    reductions are done, since the shards agree whether the step counts.

    A step is a backward that reduces: `set_requires_all_reduce(False)` and `set_requires_gradient_sync(False)`
    accumulate without one. Where a backward reaches only a part of the parameters that FSDP reduces together, that
    part goes exactly, and the stored error of the rest waits. Activation checkpointing: the non-reentrant one.

    Args:
        model: `fully_shard(…, mesh=geocomm.device_mesh())` on it and on what is in it: shards inside the sites,
            replicas across them. Its gradients, as FSDP reduces them, are float32, float16 or bfloat16.
        settings: How they are compressed, or the name of the codec alone. `exact_below` counts a parameter's elements
            before it is sharded.

    Returns:
        The handle: the stored errors, to be saved, rescaled or undone, and counters.

    Raises:
        InvalidArgumentError: The model is not of `fully_shard`, has no replicas, or has an all-reduce hook.
        UnsupportedError: The parameters are neither all on CPUs nor all on CUDA devices; their meshes differ; or
            FSDP2 of this torch lacks private parts that the hook uses.

    Example:
        Hybrid sharding over a mesh of geocomm:

            model = torch.nn.Linear(1024, 1024)
            fully_shard(model, mesh=geocomm.device_mesh())
            hook = geocomm.fsdp_hook(model, "balanced")
    """
    plan = ReductionPlan.of(HookSettings.of(settings))
    units = reduce_units(model)
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
    adapter = FsdpAdapter(model, units, replicas.pop(), plan)
    adapter.take_over()
    return adapter.hook


def _replicas_of(unit: ReduceUnit) -> dist.ProcessGroup:
    if unit.replicas is None:
        raise InvalidArgumentError(
            "the model has no replicas, whose gradients fsdp_hook would reduce: "
            "fully_shard(…, mesh=geocomm.device_mesh()) shards it inside the sites"
        )
    return unit.replicas


class FsdpAdapter:
    """Feeds a hook with the groups of parameters that FSDP reduces together, in place of its own all-reduce."""

    def __init__(
        self, model: torch.nn.Module, units: Sequence[ReduceUnit], replicas: dist.ProcessGroup, plan: ReductionPlan
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
        self.hook = GradientHook("fsdp", replicas, parameters, plan, units[0].shard, numel_of)
        self._backward = -1  # the one under way
        self._reduced: set[int] = set()  # in it

    def take_over(self) -> None:
        """Have FSDP call here after its reduce-scatter, in place of its all-reduce over the replicas. Collective."""
        alone = new_group([dist.get_rank()], use_local_synchronization=True)
        for index, unit in enumerate(self._units):
            unit.take_over(alone, functools.partial(self.run, index))

    def run(self, index: int, buffer: torch.Tensor) -> None:
        """The mean of the shard over the replicas, in place; the sum where the user has set what to divide by."""
        backward = backward_number()
        if backward != self._backward:
            self._backward = backward
            self._reduced.clear()
            self.hook.begin_step()
            at_end_of_backward(self._end_backward)
        layout, numel = self._layout_of(index)
        usual = buffer.numel() == numel and index not in self._reduced
        self._reduced.add(index)
        self.hook.reduce(index, buffer, layout if usual else None, average=self._units[index].averages).wait()

    def _end_backward(self) -> None:
        self._backward = -1
        self.hook.end_step()

    def _layout_of(self, index: int) -> tuple[Layout, int]:
        slices: list[Slice] = []
        offset = 0
        for name, one in zip(self._names[index], self._units[index].parameters, strict=True):
            if one.parameter.requires_grad:
                slices.append(Slice(name, offset, one.numel, self.hook.is_exact(name)))
                offset += one.padded_numel
        return tuple(slices), offset
