"""Which view a model needs."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from geocomm.integrations.zero_seams import engine_of
from geocomm.sync.local_steps.model.living_wrappers import require_ddp_in_site, require_no_fsdp1
from geocomm.sync.local_steps.model.parameter_view import ParameterView
from geocomm.sync.local_steps.model.parameter_views_fsdp import ShardedParameters
from geocomm.sync.local_steps.model.parameter_views_plain import PlainParameters
from geocomm.sync.local_steps.model.parameter_views_zero import engine_view
from geocomm.sync.local_steps.model.site_group import SiteFacts
from geocomm.sync.local_steps.settings.local_settings import LocalSettings


def view_of(model: torch.nn.Module, facts: SiteFacts, settings: LocalSettings) -> ParameterView:
    """The view of a model.

    Raises InvalidArgumentError for DDP, FSDP2 or DeepSpeed over ranks of several sites, UnsupportedError for FSDP1.
    """
    if isinstance(model, DistributedDataParallel):
        require_ddp_in_site(model, facts)
        model = cast(torch.nn.Module, cast(Any, model).module)
    elif (engine := engine_of(model)) is not None:
        return engine_view(engine, facts, settings)
    modules = list(model.modules())
    require_no_fsdp1(modules)
    if any(isinstance(module, FSDPModule) for module in modules):
        return ShardedParameters(model, facts, settings)
    return PlainParameters(model, facts, settings)
