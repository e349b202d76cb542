"""What ranks do in tests of `geocomm run` and init_method. A program: hub_ranks.py WORK FOLDER."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

LIMIT = timedelta(seconds=90)


def report(folder: Path, name: str, **facts: object) -> None:
    """Leave `facts` where the test looks for them."""
    beside = folder / f".{name}"
    beside.write_text(json.dumps(facts))
    beside.rename(folder / f"{name}.json")


def wait_for(path: Path) -> None:
    end = time.monotonic() + LIMIT.total_seconds()
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.05)


def total() -> float:
    """The sum over the ranks of rank + 1."""
    tensor = torch.full((40_000,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    assert bool((tensor == tensor[0]).all())
    return tensor[0].item()


def facts() -> dict[str, object]:
    from geocomm.group.backend.runtime import runtime

    names = ("GEOCOMM_SITE", "GEOCOMM_HUB", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT")
    own = runtime.world.infos[dist.get_rank()]
    return {name: os.environ.get(name) for name in names} | {"port": own.port, "host": own.hosts[0], "total": total()}


def stay(folder: Path) -> None:
    """One rank of a job that goes on until the test has looked at it."""
    dist.init_process_group("geocomm", timeout=LIMIT)
    rank = dist.get_rank()
    report(folder, f"rank{rank}", **facts())
    wait_for(folder / "go")
    dist.new_group([0, 1])  # needs the store again
    report(folder, f"end{rank}", total=total())
    dist.destroy_process_group()


def part(folder: Path) -> None:
    """One rank of a job whose ranks end without a word to each other."""
    dist.init_process_group("geocomm", timeout=LIMIT)
    report(folder, f"rank{dist.get_rank()}", **facts())
    wait_for(folder / "go")


def fail_once(folder: Path) -> None:
    """Rank 1 fails in the first round, when both ranks are in the middle of it."""
    first = not (folder / "failed").exists()
    dist.init_process_group("geocomm", timeout=LIMIT)
    rank = dist.get_rank()
    total()
    if first and rank == 1:
        (folder / "failed").touch()
        os._exit(3)
    if first:
        wait_for(folder / "never")  # the agent ends it, since the other node calls for a new round
    report(folder, f"rank{rank}", **facts())
    dist.destroy_process_group()


def meet_twice(url: str) -> list[float]:
    """Two process groups, one after the other, at the same hub: what each sums."""
    totals = []
    for _ in range(2):
        dist.init_process_group("geocomm", init_method=url, rank=int(os.environ["RANK"]), world_size=2, timeout=LIMIT)
        totals.append(total())
        dist.destroy_process_group()
    return totals


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
