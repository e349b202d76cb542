"""A view of a module whose parameters every rank of the site holds whole: alone, under DDP, or under ZeRO 0."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor
from typing_extensions import override

from geocomm.core.errors import UnsupportedError
from geocomm.sync.local_steps.model.fragments import Range
from geocomm.sync.local_steps.model.living_wrappers import require_no_reduction_between_sites
from geocomm.sync.local_steps.model.parameter_view import ParameterView, type_name, write_flat
from geocomm.sync.local_steps.model.site_group import SiteFacts
from geocomm.sync.local_steps.settings.local_settings import LocalSettings


class PlainParameters(ParameterView):
    """Whole parameters. Those that are trained must be dense float32 (UnsupportedError)."""

    def __init__(self, model: torch.nn.Module, facts: SiteFacts, settings: LocalSettings) -> None:
        """Raises InvalidArgumentError where something reduces the gradients between sites."""
        super().__init__(model, settings)
        self._facts: SiteFacts | None = facts
        require_no_reduction_between_sites(self._trainable.values(), facts)

    @override
    def check(self) -> None:
        if self._facts is not None:  # some frameworks wrap the model between local_steps() and the first step
            require_no_reduction_between_sites(self._trainable.values(), self._facts)
            self._facts = None
        super().check()

    @override
    def _require(self, name: str, parameter: torch.nn.Parameter) -> None:
        if isinstance(parameter, DTensor) or hasattr(parameter, "ds_tensor"):
            raise UnsupportedError(
                f"local steps: parameter {name} is a shard, but the model is neither of fully_shard nor a DeepSpeed "
                "engine; pass the model that fully_shard gave, or the engine"
            )
        require_float32(name, parameter)

    @override
    def held(self, name: str) -> tuple[int, int]:
        return 0, self._trainable[name].numel()

    @override
    def read(self, part: Range, out: torch.Tensor) -> None:
        out.copy_(self._trainable[part.name].detach().reshape(-1)[part.start : part.stop])

    @override
    def memory(self, part: Range) -> torch.Tensor | None:
        values = self._trainable[part.name].detach()
        if values.device.type != "cpu" or not values.is_contiguous():
            return None
        return values.view(-1)[part.start : part.stop]

    @override
    def write(self, part: Range, values: torch.Tensor) -> None:
        write_flat(self._trainable[part.name].detach(), part.start, values)


def require_float32(name: str, parameter: torch.nn.Parameter) -> None:
    """Raise UnsupportedError for a parameter that is not dense float32, if it is trained."""
    if parameter.layout != torch.strided or (parameter.requires_grad and parameter.dtype != torch.float32):
        raise UnsupportedError(
            f"local steps: parameter {name} is {type_name(parameter, parameter.shape)}; only dense float32 is "
            "averaged, since changes of lower precision drown in rounding. Keep the weights in float32 and compute "
            "under torch.autocast or FSDP2's MixedPrecisionPolicy, or freeze the parameter"
        )
