"""What ranks of a process group that reconfigures do, and how a test exchanges their handles."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from support.harness import Outcome, Ranks

TIMEOUT = timedelta(seconds=20)


def join(store: str | None = None, **arguments: Any) -> str:
    """This process's handle, of a group that nobody is in. store: that of this site's ranks; None: one of its own."""
    dist.set_debug_level_from_env()  # torch has read it before this rank had its variables
    rank = int(os.environ["RANK"])
    given: dist.Store = dist.HashStore() if store is None else dist.FileStore(store)
    dist.init_process_group(
        "geocomm",
        store=given,
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        enable_reconfigure=True,
        **({"timeout": TIMEOUT} | arguments),
    )
    return handle()


def handle() -> str:
    return dist._get_reconfigure_handle()


def reconfigure(uuid: int, handles: list[str] | set[str], seconds: float = 20) -> tuple[int, int]:
    """This rank's number in the new group, and its size."""
    dist._reconfigure(uuid, handles, timeout=timedelta(seconds=seconds)).wait()
    return dist.get_rank(), dist.get_world_size()


def total(value: float, elements: int = 300_000) -> float:
    """The sum over the ranks that are there."""
    tensor = torch.full((elements,), value)
    dist.all_reduce(tensor)
    assert bool((tensor == tensor[0]).all())
    return tensor[0].item()


def meet(ranks: Ranks, uuid: int, members: Sequence[int], seconds: float = 20) -> list[Outcome]:
    """What reconfigure gave on each of these processes, with handles in their order."""
    handles = [outcome.value for outcome in ranks.outcomes(handle, ranks=members)]
    assert all(handles)
    return ranks.outcomes(reconfigure, uuid, handles, seconds, ranks=members)


def values(outcomes: list[Outcome]) -> list[Any]:
    """All went well."""
    assert [outcome.failure.traceback for outcome in outcomes if outcome.failure] == []
    return [outcome.value for outcome in outcomes]
