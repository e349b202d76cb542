"""A view of an FSDP2 model (`fully_shard`) whose parameters the ranks of the site hold in parts."""

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
from geocomm.sync.local_steps.model.parameter_view import ParameterView, write_flat
from geocomm.sync.local_steps.model.parameter_views_plain import require_float32
from geocomm.sync.local_steps.model.site_group import SiteFacts
from geocomm.sync.local_steps.settings.local_settings import LocalSettings


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
