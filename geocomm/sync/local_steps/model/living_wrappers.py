"""Wrappers that reduce the gradients of a module between sites, though the module was passed without them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from geocomm.core.errors import InvalidArgumentError, UnsupportedError
from geocomm.sync.local_steps.model.site_group import SiteFacts


def require_ddp_in_site(ddp: DistributedDataParallel, facts: SiteFacts) -> None:
    """Raise InvalidArgumentError for one that reduces between sites."""
    if len(sites := _sites(_group(ddp), facts)) > 1:
        raise InvalidArgumentError(
            f"local steps: DDP reduces every gradient between the sites {', '.join(sites)}; give it the ranks of this "
            "site, DistributedDataParallel(model, process_group=...), or leave it out where a site has one rank"
        )


def require_no_fsdp1(modules: Iterable[torch.nn.Module]) -> None:
    """Raise UnsupportedError for one of them."""
    if any(isinstance(module, FullyShardedDataParallel) for module in modules):
        raise UnsupportedError(
            "local steps: the model is of FullyShardedDataParallel (FSDP1), whose flat parameters have no names; use "
            "fully_shard (FSDP2)"
        )


def require_no_reduction_between_sites(parameters: Iterable[torch.Tensor], facts: SiteFacts) -> None:
    """Raise InvalidArgumentError where a living DDP or DeepSpeed engine has one of these parameters, and its ranks are
    at several sites; UnsupportedError where an FSDP1 has one. Callbacks and modules of frameworks get the model without
    what is around it.

    Looks at every object of the process: a quarter of a second for 450,000 of them. Not without a process group, which
    all three need.
    """
    if not torch.distributed.is_initialized():
        return
    wanted = {id(parameter) for parameter in parameters}
    if not any(_reduces_between_sites(one, facts) for one in _wrappers_of(wanted)):
        return
    gc.collect()  # one that is deleted already is no longer there afterwards, and reduces nothing
    wrappers = _wrappers_of(wanted)
    require_no_fsdp1(wrappers)
    for wrapper in wrappers:
        if _reduces_between_sites(wrapper, facts):
            raise InvalidArgumentError(
                f"local steps: the model is in a {type(wrapper).__name__} too, which reduces every gradient between "
                f"the sites {', '.join(_sites(_group(wrapper), facts))}; give it the ranks of this site "
                "(geocomm.sites().inside), leave it out where a site has one rank, or delete it before local_steps() "
                "if it is of no more use"
            )


def _wrappers_of(wanted: set[int]) -> list[torch.nn.Module]:
    """The living ones that have a parameter with one of these ids."""
    deepspeed: Any = sys.modules.get("deepspeed")
    kinds = _with_subclasses(DistributedDataParallel) | _with_subclasses(FullyShardedDataParallel)
    if hasattr(deepspeed, "DeepSpeedEngine"):
        kinds |= _with_subclasses(deepspeed.DeepSpeedEngine)
    found: list[torch.nn.Module] = []
    wrappers: list[torch.nn.Module] = [one for one in gc.get_objects() if type(one) in kinds]
    for wrapper in wrappers:
        # One whose __init__ has failed, or not ended, has no modules.
        modules: dict[str, torch.nn.Module | None] = vars(wrapper).get("_modules", {})
        inside = [one for one in modules.values() if one is not None]
        if any(id(parameter) in wanted for module in inside for parameter in module.parameters()):
            found.append(wrapper)
    return found


def _reduces_between_sites(wrapper: torch.nn.Module, facts: SiteFacts) -> bool:
    return isinstance(wrapper, FullyShardedDataParallel) or len(_sites(_group(wrapper), facts)) > 1


def _group(wrapper: Any) -> Any:
    is_ddp = isinstance(wrapper, DistributedDataParallel)
    return getattr(wrapper, "process_group" if is_ddp else "seq_data_parallel_group")


def _sites(group: Any, facts: SiteFacts) -> list[str]:
    return sorted(facts.sites_of(torch.distributed.get_process_group_ranks(group)))


def _with_subclasses(kind: type) -> set[type]:
    found = {kind}
    for one in kind.__subclasses__():
        found |= _with_subclasses(one)
    return found
