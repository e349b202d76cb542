"""Process groups of any backend between ranks that meet at a hub with keys: what tests of who may make which share."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from support.harness import Ranks
from support.hub_support import HUB_HOST
from support.local_jobs import free_port

SITES = ["a", "a", "b", "b"]
LIMIT = timedelta(seconds=60)


def ranks_at(sites: list[str], keys: Path, **variables: str) -> Ranks:
    """Not yet in a group. They meet at a hub, which makes them a job over sites for groups of any backend."""
    return Ranks(
        sites,
        environment={"HUB": f"geocomm://{HUB_HOST}:{free_port(HUB_HOST)}", **variables},
        environment_of={rank: {"GEOCOMM_KEYS": str(keys / site)} for rank, site in enumerate(sites)},
    )


def meet(backend: str | None) -> None:
    dist.init_process_group(backend, init_method=os.environ["HUB"], timeout=LIMIT)


def attempt(make: Callable[[], Any]) -> str:
    """What refuses it; empty: nothing."""
    try:
        make()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def total(group: dist.ProcessGroup | None = None) -> float:
    tensor = torch.full((1000,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor, group=group)
    return tensor[0].item()
