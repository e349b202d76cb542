"""A view of a DeepSpeed engine that keeps float32 masters apart from the weights: 16 bits, and ZeRO 1 to 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from typing_extensions import override

from geocomm.core.errors import InvalidArgumentError, UnsupportedError
from geocomm.core.units import count_text
from geocomm.core.zero_cuts import whole_shape
from geocomm.integrations.deepspeed_seams import deepspeed_problem
from geocomm.integrations.zero_seams import (
    Master,
    compare_no_traces,
    master_of,
    unsupported_part,
    whole_values,
)
from geocomm.sync.local_steps.model.fragments import Range, digest
from geocomm.sync.local_steps.model.parameter_view import ParameterView, type_name
from geocomm.sync.local_steps.model.parameter_views_torch import PlainParameters
from geocomm.sync.local_steps.model.site_group import SiteFacts
from geocomm.sync.local_steps.settings.local_settings import LocalSettings

if TYPE_CHECKING:
    import deepspeed


class MasterParameters(ParameterView):
    """Float32 masters, whole ones or this rank's part of each. What is written to them goes to the weights too, as
    DeepSpeed rounds it."""

    def __init__(self, engine: deepspeed.DeepSpeedEngine, settings: LocalSettings) -> None:
        """Raises UnsupportedError for what was not checked with local steps."""
        if problem := deepspeed_problem():
            raise UnsupportedError(f"local steps: {problem}; or train with ZeRO 0 in float32, FSDP2 or DDP")
        self._engine = engine
        self.sharded = engine.zero_optimization_stage() > 0
        self._find = master_of(engine)
        self._masters: dict[str, Master] = {}
        module: Any = engine.module
        super().__init__(module, settings)

    @override
    def _require(self, name: str, parameter: torch.nn.Parameter) -> None:
        if not parameter.requires_grad:
            return
        master = self._find(parameter)
        if master is None:
            raise InvalidArgumentError(
                f"local steps: parameter {name} is trained, but the engine's optimizer does not have it; give the "
                "optimizer all parameters, or freeze this one"
            )
        if master.values().dtype != torch.float32:
            raise UnsupportedError(
                f"local steps: the master of parameter {name} is {type_name(master.values(), master.values().shape)}; "
                "only float32 is averaged, since changes of lower precision drown in rounding: leave out "
                "bf16_master_weights_and_grads and fp16_master_weights_and_grads"
            )
        if not _follow(master, parameter):
            raise UnsupportedError(
                f"local steps: what DeepSpeed links to parameter {name} is not its master; leave out what is special "
                "in the section zero_optimization"
            )
        self._masters[name] = master

    @override
    def _shape(self, parameter: torch.nn.Parameter) -> torch.Size:
        return whole_shape(parameter)

    @override
    def _whole(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        return whole_values(parameter)

    @override
    def check_optimizers(self, optimizers: Sequence[Any]) -> None:
        require_engines_optimizer(self._engine, optimizers)

    @override
    def held(self, name: str) -> tuple[int, int]:
        master = self._masters[name]
        return master.start, master.start + master.values().numel()

    @override
    def read(self, part: Range, out: torch.Tensor) -> None:
        master = self._masters[part.name]
        out.copy_(master.values()[part.start - master.start : part.stop - master.start])

    @override
    def write(self, part: Range, values: torch.Tensor) -> None:
        master = self._masters[part.name]
        first, last = self.held(part.name)
        start, stop = max(first, part.start), min(last, part.stop)
        if start < stop:
            master.set(start - first, values[start - part.start : stop - part.start])
        master.set_weights(part.start, values)

    @override
    def digests(self) -> Mapping[str, str]:
        """The digests of a module, and of the masters that this rank has whole."""
        masters = {} if self.sharded else {f"master of {name}": one for name, one in self._masters.items()}
        return {**super().digests(), **{name: digest([master.values()]) for name, master in masters.items()}}


def _follow(master: Master, parameter: torch.nn.Parameter) -> bool:
    """Whether the weights that this rank has are about those of the master: DeepSpeed may have decayed the one before
    the first step, and not the other."""
    weights = master.weights()
    masters = master.values().to(weights)
    return torch.allclose(masters, weights, rtol=0.02, atol=1e-6, equal_nan=True)


def require_engines_optimizer(engine: deepspeed.DeepSpeedEngine, optimizers: Sequence[Any]) -> None:
    """Raise InvalidArgumentError for others than the one that the engine steps."""
    if len(optimizers) > 1:
        raise InvalidArgumentError("local steps: a DeepSpeed engine has one optimizer; pass engine.optimizer alone")
    if optimizers[0] is not cast(Any, engine).optimizer:
        raise InvalidArgumentError(
            "local steps: the optimizer is not the engine's; call local_steps(engine, engine.optimizer)"
        )


class EngineParameters(PlainParameters):
    """The parameters of an engine in float32 without ZeRO, whose module is an ordinary one."""

    def __init__(self, engine: deepspeed.DeepSpeedEngine, facts: SiteFacts, settings: LocalSettings) -> None:
        self._engine = engine
        module: Any = engine.module
        super().__init__(module, facts, settings)

    @override
    def check_optimizers(self, optimizers: Sequence[Any]) -> None:
        require_engines_optimizer(self._engine, optimizers)
        super().check_optimizers(optimizers)


def engine_view(
    engine: deepspeed.DeepSpeedEngine, facts: SiteFacts, settings: LocalSettings
) -> MasterParameters | EngineParameters:
    """The view of an engine.

    Raises InvalidArgumentError for an engine whose data parallel group is not the ranks of this site, UnsupportedError
    for one that does what was not checked with local steps.
    """
    group: Any = engine.seq_data_parallel_group
    sites = facts.sites_of(torch.distributed.get_process_group_ranks(group))
    if len(sites) > 1 or group.size() != facts.ranks.size:
        raise InvalidArgumentError(
            f"local steps: DeepSpeed reduces gradients over {count_text(group.size(), 'rank')} of "
            f"{', '.join(sorted(sites))}; give "
            "it the ranks of this site, deepspeed.initialize(..., mpu=geocomm.integrations.deepspeed.SiteParallel())"
        )
    if (words := unsupported_part(engine)) is not None:
        raise UnsupportedError(f"local steps: the DeepSpeed engine uses {words}, which they do not know")
    if isinstance(cast(Any, engine).optimizer, torch.optim.Optimizer):
        return EngineParameters(engine, facts, settings)
    if engine.zero_optimization_stage() == 3:
        compare_no_traces()
    return MasterParameters(engine, settings)
