"""The private parts of DeepSpeed that local steps use, and nothing else of geocomm: where an engine keeps the
float32 masters of its parameters. Imports deepspeed only when it is used."""

# DeepSpeed's parts have hardly any types.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from typing_extensions import override

from geocomm.core.zero_cuts import is_cut, own_run

if TYPE_CHECKING:
    import deepspeed


def engine_of(model: torch.nn.Module) -> deepspeed.DeepSpeedEngine | None:
    """The model, if it is an engine of DeepSpeed."""
    imported: Any = sys.modules.get("deepspeed")
    engine: Any = model
    return engine if imported is not None and isinstance(model, imported.DeepSpeedEngine) else None


def unsupported_part(engine: deepspeed.DeepSpeedEngine) -> str | None:
    """Name a part of the engine that was not checked with local steps; None: it has only checked ones."""
    config: Any = engine
    offload = (config.zero_offload_optimizer(), config.zero_offload_param())
    found = {
        "pipeline parallelism": config.pipeline_parallelism,
        "tensor or model parallelism": config.mp_world_size > 1,
        "sequence parallelism": config.sequence_parallel_size > 1,
        "experts (MoE)": config.has_moe_layers,
        "ZeRO++ (hpZ, quantized weights)": config.zero_hpz_partition_size() > 1 or config.zero_quantized_weights(),
        "offload to NVMe": any(one is not None and str(one.device).endswith("nvme") for one in offload),
        "SuperOffload": config.super_offload(),
        "ZenFlow": config.zenflow,
        # DeepSpeed 0.19.8 does not link them to the parameters that they are of (link_hp_params).
        "round_robin_gradients, which hides the masters": config.zero_round_robin_gradients()
        and config.zero_optimization_stage() in (1, 2),
    }
    return next((words for words, is_used in found.items() if is_used), None)


def compare_no_traces() -> None:
    """Have ZeRO 3 not compare the order of its modules over all ranks, from now on in this process.

    It does so in forward passes, by broadcasts of the default process group: sites would wait for each other there.
    """
    from deepspeed.runtime.zero import partitioned_param_coordinator

    coordinator: Any = partitioned_param_coordinator
    coordinator.assert_ints_same_as_other_ranks = lambda ints: None


class Master(Protocol):
    """The float32 elements of a parameter that this rank's optimizer updates, and the weights that follow them."""

    start: int
    """The first of these elements in the parameter."""

    def values(self) -> torch.Tensor:
        """These elements as the optimizer has them now, 1-D."""
        ...

    def weights(self) -> torch.Tensor:
        """The weights that the model computes with in their place, 1-D."""
        ...

    def set(self, start: int, values: torch.Tensor) -> None:
        """Replace elements from the `start`-th of these on."""
        ...

    def set_weights(self, start: int, values: torch.Tensor) -> None:
        """Replace the model's weights from element `start` of the parameter on, as far as this rank has them."""
        ...


class WholeMaster(Master):
    """A copy of the whole parameter, as the optimizers for 16 bits have it without ZeRO."""

    def __init__(self, parameter: Any, master: Callable[[], torch.Tensor], start: int = 0) -> None:
        """`master` returns the copy, 1-D."""
        self._master = master
        self._parameter = parameter
        self.start = start

    @override
    def values(self) -> torch.Tensor:
        return self._master()

    @override
    def weights(self) -> torch.Tensor:
        return self._parameter.detach().view(-1)

    @override
    def set(self, start: int, values: torch.Tensor) -> None:
        self.values()[start : start + values.numel()].copy_(values)

    @override
    def set_weights(self, start: int, values: torch.Tensor) -> None:
        _set_flat(self._parameter.detach(), start, values)


class LinkedMaster(WholeMaster):
    """A part of the masters and all weights, as each rank has them under ZeRO 1 and 2."""

    def __init__(self, parameter: Any) -> None:
        link = parameter._hp_mapping
        super().__init__(parameter, self._linked, 0 if link is None else link.lp_fragment_address.start)

    def _linked(self) -> torch.Tensor:
        link = self._parameter._hp_mapping
        return torch.empty(0) if link is None else link.hp_fragment.detach()

    @override
    def weights(self) -> torch.Tensor:
        return super().weights()[self.start : self.start + self.values().numel()]


class PartitionedMaster(Master):
    """A part of masters and weights, as each rank has it under ZeRO 3, which keeps some weights whole."""

    def __init__(self, parameter: Any) -> None:
        self._parameter = parameter
        self.start, stop = own_run(parameter)
        self._numel = stop - self.start

    @override
    def values(self) -> torch.Tensor:
        """These elements, without what ZeRO appends to the last part."""
        from deepspeed.utils import safe_get_local_fp32_param

        found: Any = safe_get_local_fp32_param(self._parameter)
        return found.detach()[: self._numel]

    @override
    def weights(self) -> torch.Tensor:
        return self._parameter.ds_tensor.detach().view(-1)[: self._numel]

    @override
    def set(self, start: int, values: torch.Tensor) -> None:
        from deepspeed.utils import safe_get_local_fp32_param, safe_set_local_fp32_param

        found: Any = safe_get_local_fp32_param(self._parameter)
        changed = found.detach().clone()
        changed[start : start + values.numel()].copy_(values)
        safe_set_local_fp32_param(self._parameter, changed)

    @override
    def set_weights(self, start: int, values: torch.Tensor) -> None:
        from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

        first, last = max(start, self.start), min(start + values.numel(), self.start + self._numel)
        if first < last:
            part = self._parameter.ds_tensor.detach().view(-1)
            part[first - self.start : last - self.start].copy_(values[first - start : last - start])
        if self._parameter.ds_status == ZeroParamStatus.AVAILABLE:
            _set_flat(self._parameter.detach(), start, values)


def master_of(engine: deepspeed.DeepSpeedEngine) -> Callable[[torch.nn.Parameter], Master | None]:
    """Return a function that finds the master of a trained parameter, or None if its optimizer has none."""
    stage = engine.zero_optimization_stage()
    if stage == 3:
        return lambda parameter: PartitionedMaster(parameter) if is_cut(parameter) else None
    if stage:
        return lambda parameter: LinkedMaster(parameter) if hasattr(parameter, "_hp_mapping") else None
    optimizer: Any = engine.optimizer
    copies: dict[int, Callable[[], torch.Tensor]] = {}
    for index, weights in enumerate(optimizer.fp16_groups):
        if hasattr(optimizer, "fp32_groups"):
            for parameter, master in zip(weights, optimizer.fp32_groups[index], strict=True):
                copies[id(parameter)] = lambda master=master: master.detach().view(-1)
            continue
        offset = 0
        for parameter in weights:
            span = slice(offset, offset + parameter.numel())
            copies[id(parameter)] = lambda index=index, span=span: optimizer.fp32_groups_flat[index].detach()[span]
            offset += parameter.numel()
    return lambda parameter: WholeMaster(parameter, copies[id(parameter)]) if id(parameter) in copies else None


def flat_parts(optimizer: Any) -> list[torch.Tensor] | None:
    """What ZeRO 3 updates, which is in the groups of its optimizer only while it steps; None: another optimizer."""
    return getattr(optimizer, "fp32_partitioned_groups_flat", None)


def whole_values(parameter: Any) -> torch.Tensor:
    """The values of a parameter, also of one that ZeRO 3 has cut; collective over the ranks of the site."""
    if not is_cut(parameter):
        return parameter.detach()
    import deepspeed

    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


def _set_flat(tensor: torch.Tensor, start: int, values: torch.Tensor) -> None:
    """The tensor is one that DeepSpeed has laid out: its elements follow each other."""
    tensor.view(-1)[start : start + values.numel()].copy_(values)
