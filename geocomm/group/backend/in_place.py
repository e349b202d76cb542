"""Scripts that name another backend, or none, over sites as they are: geocomm takes the place of Gloo and NCCL.

`geocomm run --backend geocomm` asks for it, by GEOCOMM_BACKEND. Groups inside a site stay what the script named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import BackendConfig

from geocomm.core.environment import SCRIPTS_OWN, backend_name, backend_over_sites
from geocomm.core.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from geocomm.group.membership.rank_record import RankInfo

_NAME = "geocomm"
_REPLACED = {"gloo", "nccl", "nccl2", "nccl-lazy", "nccl-legacy", _NAME}
"""Backends whose collectives geocomm has, on the same devices. All but two are NCCL's, in torch 2.15."""


def names_of(backend: object) -> set[str]:
    """The backends that torch makes for what a script gives as `backend`, such as "cpu:gloo,cuda:nccl" or nothing."""
    return {str(name) for name in _config(backend).get_device_backend_map().values()}


def _config(backend: object) -> BackendConfig:
    name: Any = dist.Backend(str(backend))
    return BackendConfig(name)


def take_place(call: dict[str, Any], infos: list[RankInfo] | None) -> str | None:
    """Have torch make geocomm's group in place of the one that it is about to make, where that is asked for and the
    group spans sites.

    call: the arguments of torch's function, which are changed. infos: of the ranks of the default group, if it is known
    where they are. Returns the name to tell the script; None: the group stays what it is.
    """
    if backend_over_sites() != _NAME:
        return None
    asked = str(call["backend"])
    named = names_of(asked)
    if named == {_NAME} or "fake" in named:
        return None
    ranks: list[int] = call["global_ranks_in_group"]
    sites: set[str | None] = {infos[rank].site for rank in ranks} if infos else set()
    if ranks and len(sites) < 2:
        if call["group_rank"] is not None:
            _check_inside(named, sites)
        return None
    if others := ", ".join(sorted(named - _REPLACED)):
        raise InvalidArgumentError(
            f"the script asks for a process group of {others} over sites. GEOCOMM_BACKEND=geocomm (geocomm run "
            "--backend geocomm) puts geocomm in the place of gloo and nccl alone: have the script name one of them, or "
            "no backend"
        )
    call["backend"] = dist.Backend(_NAME)
    from geocomm.core.options import Options

    if not isinstance(call.get("backend_options"), Options):  # those of NCCL mean nothing here
        call["backend_options"] = None
    return asked if backend_name() == SCRIPTS_OWN else backend_name()


def tell(group: Any, name: str) -> None:
    """What `dist.get_backend(group)` says from now on, and what new groups are that name no backend."""
    world: Any = dist.distributed_c10d._world  # pyright: ignore[reportPrivateUsage]
    world.pg_map[group] = (dist.Backend(name), world.pg_map[group][1])
    world.pg_backend_config[group] = str(_config(name))


def _check_inside(named: set[str], sites: set[str | None]) -> None:
    """Under plain torch the default group would have failed before a group inside a site could."""
    if any(name.startswith("nccl") for name in named) and not dist.is_nccl_available():
        where = f"site {next(iter(sites))}" if sites else "a site"
        raise UnsupportedError(
            f"the script asks for a process group of NCCL inside {where}, and torch {torch.__version__} there has no "
            "NCCL: install a CUDA build of torch, or have the script name gloo"
        )


def split_source(source: Any) -> Any:
    """What torch splits to make a part of the default group: not geocomm's group, for NCCL can split its own alone.

    geocomm's parts of a group are made anew, or by its own `split`.
    """
    return None if source is not None and source.name() == _NAME else source
