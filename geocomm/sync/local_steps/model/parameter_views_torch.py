"""Views of models whose parameters each rank has whole, or, by FSDP2 (`fully_shard`), in parts."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard
from typing_extensions import override

from geocomm.core.errors import InvalidArgumentError, UnsupportedError
from geocomm.core.typed_torch import to_list
from geocomm.core.units import count_text
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


class ShardedParameters(ParameterView):
    """Rows of each parameter: what FSDP2 keeps in float32, whatever dtype it computes in."""

    sharded = True

    def __init__(self, model: torch.nn.Module, facts: SiteFacts, settings: LocalSettings) -> None:
        """Raises InvalidArgumentError for a mesh that is not that of all ranks of the site, UnsupportedError for
        parameters that are not cut between rows."""
        self._facts = facts
        self._units = [module for module in model.modules() if isinstance(module, FSDPModule)]
        self._show_shards()
        super().__init__(model, settings)

    def _show_shards(self) -> None:
        """FSDP leaves whole parameters in the model after some forwards: take them away, for they would be stale."""
        for unit in self._units:
            unit.reshard()

    @override
    def _require(self, name: str, parameter: torch.nn.Parameter) -> None:
        require_float32(name, parameter)
        if not isinstance(parameter, DTensor):
            if parameter.requires_grad:
                raise UnsupportedError(
                    f"local steps: parameter {name} is not sharded, and nobody reduces its gradient; call "
                    "fully_shard on the whole model, or freeze the parameter"
                )
            return
        mesh = parameter.device_mesh
        sites = self._facts.sites_of(to_list(mesh.mesh.flatten()))
        if len(sites) > 1 or mesh.size() != self._facts.ranks.size:
            raise InvalidArgumentError(
                f"local steps: parameter {name} is sharded over {count_text(mesh.size(), 'rank')} of "
                f"{', '.join(sites)}; give "
                "fully_shard the mesh of all ranks of this site, mesh=geocomm.device_mesh()['local']"
            )
        cuts = [one for one in parameter.placements if type(one) is not Replicate]
        if len(cuts) != 1 or type(cuts[0]) is not Shard or cast(Any, cuts[0]).dim != 0:
            raise UnsupportedError(
                f"local steps: parameter {name} is placed as {parameter.placements}; only parameters that FSDP2 cuts "
                "between rows, Shard(0), are averaged"
            )

    @override
    def held(self, name: str) -> tuple[int, int]:
        """The rows of this rank; none if another rank before it holds the same ones."""
        parameter = self._sharded(name)
        start, stop = self._rows(parameter)
        mesh = parameter.device_mesh
        for dim, placement in enumerate(parameter.placements):
            if type(placement) is Replicate and mesh.get_local_rank(dim):
                return start, start
        return start, stop

    @override
    def read(self, part: Range, out: torch.Tensor) -> None:
        parameter = self._sharded(part.name)
        start, _ = self._rows(parameter)
        out.copy_(parameter.to_local().detach().reshape(-1)[part.start - start : part.stop - start])

    @override
    def write(self, part: Range, values: torch.Tensor) -> None:
        self._show_shards()
        parameter = self._sharded(part.name)
        first, last = self._rows(parameter)
        start, stop = max(first, part.start), min(last, part.stop)
        if start < stop:
            local = parameter.to_local().detach()
            write_flat(local, start - first, values[start - part.start : stop - part.start])

    @override
    def check(self) -> None:
        self._show_shards()
        super().check()

    @override
    def _whole(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()

    def _sharded(self, name: str) -> DTensor:
        return cast(DTensor, self._trainable[name])  # __init__ refuses others

    def _rows(self, parameter: DTensor) -> tuple[int, int]:
        """The elements [start, stop) of the rows that this rank has: equal numbers of rows, the last ranks fewer."""
        (dim,) = (dim for dim, one in enumerate(parameter.placements) if type(one) is not Replicate)
        mesh, rows = parameter.device_mesh, parameter.shape[0]
        most, row = -(-rows // mesh.size(dim)), parameter.shape[1:].numel()
        start = min(most * mesh.get_local_rank(dim), rows)
        return start * row, min(start + most, rows) * row
