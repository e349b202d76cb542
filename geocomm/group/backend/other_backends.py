"""Groups of other backends in a job of several sites: Gloo and NCCL send plaintext, which security=required forbids.

torch has no hook before a group is made, but makes all in one function, `_new_process_group_helper` of
torch.distributed.distributed_c10d: init_process_group, new_group, device meshes and frameworks come by it. `_autoload`
puts `make_group` in its place, in every process that imports torch. So nothing is imported here that takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from geocomm.core.environment import hub_address
from geocomm.group.membership.own_address import own_addresses, remembered_hub

if TYPE_CHECKING:
    import inspect
    from datetime import timedelta

    from torch.distributed import Store

    from geocomm.group.membership.rank_record import RankInfo

_SILENT = {"geocomm", "fake"}
"""Backends that send no plaintext between the sites."""
_infos: list[RankInfo] | None = None


def remember(infos: list[RankInfo]) -> None:
    """Where the ranks of the default group are."""
    global _infos
    _infos = infos


def make_group(make: Callable[..., Any], call: inspect.BoundArguments) -> Any:
    """Have torch's function `make` a group, or geocomm's in its place, unless the group must not be (`_check`)."""
    from geocomm.group.backend import in_place

    told = in_place.take_place(call.arguments, _infos)
    _check(call.arguments)
    made = make(*call.args, **call.kwargs)
    group, store = made
    if told is not None and store is not None:  # there is none where this rank is not in the group
        in_place.tell(group, told)
    return made


def _check(call: Mapping[str, Any]) -> None:
    """Look at a group that torch is about to make; `call`: the arguments of its function.

    Where the job meets at a hub, the ranks of a default group of another backend tell each other of their sites:
    collective then. Raises InvalidArgumentError, on all ranks, where the group must not be.
    """
    import torch.distributed as dist

    from geocomm.group.backend.in_place import names_of

    global _infos
    named = names_of(call["backend"])
    others = ", ".join(sorted(named - _SILENT))
    ranks = call["global_ranks_in_group"]
    if is_default := not dist.is_initialized():
        _infos = None
    if not others:
        return
    if ranks:
        infos = _infos and [_infos[rank] for rank in ranks]
    elif remembered_hub() or hub_address() or "geocomm" in named:
        store = dist.PrefixStore(f"geocomm/other-backend/{call['group_name']}/", call["store"])
        infos = _roll_call(others, store, call["group_rank"], call["group_size"], call["timeout"])
        if is_default:
            _infos = infos
    else:
        infos = None
    if infos:
        from geocomm.group.backend.group_admission import check_other_backend

        check_other_backend(infos, others, None if ranks else call["group_rank"])


def _roll_call(others: str, store: Store, rank: int, size: int, timeout: timedelta) -> list[RankInfo]:
    """The ranks of a group, which are all of their job."""
    from dataclasses import asdict

    from geocomm.core.errors import InvalidArgumentError
    from geocomm.core.options import Options
    from geocomm.group.backend.group_admission import check_one_site
    from geocomm.group.membership.group_agreement import check_joined, exchange, publish
    from geocomm.group.membership.one_site import Scope, own_presence
    from geocomm.group.membership.rank_record import RankInfo

    if rank < 0:
        raise InvalidArgumentError(
            f"{others} gives its ranks numbers of its own, so that geocomm cannot tell at which sites they are: "
            'init_process_group("geocomm")'
        )
    try:
        options, hosts = Options(), own_addresses()
        presence = asdict(own_presence(rank, options, hosts[0]))
        own = RankInfo(rank, rank, site=options.site, hosts=hosts, agreed=options.agreed(), presence=presence)
    except Exception as error:  # the others would wait for this rank
        publish(store, RankInfo(rank, rank, error=f"{type(error).__name__}: {error}"))
        raise
    infos = exchange(store, list(range(size)), own, timeout)
    check_joined(infos)
    check_one_site(infos, rank, Scope.JOB)
    return infos
