"""Which view a model needs."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from geocomm.core.errors import InvalidArgumentError, UnsupportedError
from geocomm.local_sgd.parameter_view import ParameterView
from geocomm.local_sgd.parameter_views_fsdp import ShardedParameters
from geocomm.local_sgd.parameter_views_plain import PlainParameters
from geocomm.local_sgd.parameter_views_zero import engine_view
from geocomm.local_sgd.rounds import Rounds
from geocomm.local_sgd.zero_seams import engine_of


def view_of(model: torch.nn.Module, rounds: Rounds, **settings: Any) -> ParameterView:
    """The view of a model; settings: those of `ModuleView`.

    Raises InvalidArgumentError for DDP, FSDP2 or DeepSpeed over ranks of several sites, UnsupportedError for FSDP1.
    """
    if isinstance(model, DistributedDataParallel):
        sites = rounds.sites_of(torch.distributed.get_process_group_ranks(model.process_group))
        if len(sites) > 1:
            raise InvalidArgumentError(
                f"local steps: DDP reduces every gradient between the sites {', '.join(sorted(sites))}; give it the "
                "ranks of this site, DistributedDataParallel(model, process_group=...), or leave it out where a site "
                "has one rank"
            )
        model = model.module
    elif (engine := engine_of(model)) is not None:
        return engine_view(engine, rounds, **settings)
    modules = list(model.modules())
    if any(isinstance(module, FullyShardedDataParallel) for module in modules):
        raise UnsupportedError(
            "local steps: the model is of FullyShardedDataParallel (FSDP1), whose flat parameters have no names; use "
            "fully_shard (FSDP2)"
        )
    if any(isinstance(module, FSDPModule) for module in modules):
        return ShardedParameters(model, rounds, **settings)
    return PlainParameters(model, **settings)
