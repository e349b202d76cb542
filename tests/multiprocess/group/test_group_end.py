"""Two groups on one channel: what one of them leaves behind when it ends does not cost the other its credit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from support.harness import Ranks

MIB = 1 << 20
CREDIT_MIB = 64
EARLY_MIB = 40
PATIENCE_S = 60
_ends: dist.ProcessGroup | None = None  # of the rank process


@pytest.fixture
def two() -> Iterator[Ranks]:
    with Ranks(["a", "b"]) as ranks:
        ranks.init(timeout=timedelta(seconds=120))
        yield ranks


def _early_bytes() -> tuple[int, int]:
    import geocomm

    peers = geocomm.stats()["peers"]
    return sum(peer["early_bytes_held"] for peer in peers), sum(peer["early_bytes_sent"] for peer in peers)


def _comes_to(expected: list[tuple[int, int]]) -> tuple[int, int]:
    """Bytes held and sent early, once they are what they should be on this rank."""
    end = time.monotonic() + PATIENCE_S
    while _early_bytes() != expected[dist.get_rank()] and time.monotonic() < end:
        time.sleep(0.01)
    return _early_bytes()


def _begin() -> None:
    """The group that ends; its first rank is ahead of the second one."""
    global _ends
    _ends = dist.new_group()
    dist.barrier(group=_ends)
    if dist.get_rank() == 0:
        for _ in range(EARLY_MIB):
            dist.isend(torch.ones(MIB // 4), 1, group=_ends)


def _leave() -> None:
    dist.destroy_process_group(_ends)


def _abort_on_first() -> None:
    """The other rank waits for it, and is told."""
    if dist.get_rank() == 0:
        _ends._get_backend(torch.device("cpu")).abort()
    else:
        with pytest.raises(dist.DistBackendError, match="aborted"):
            dist.barrier(group=_ends)


def _fail() -> None:
    """Operations that do not match."""
    with pytest.raises(RuntimeError, match="disagree"):
        dist.all_reduce(torch.ones(8 + dist.get_rank()), group=_ends)


def _send_all_credit_early() -> None:
    if dist.get_rank() == 0:
        for i in range(CREDIT_MIB):
            dist.isend(torch.full((MIB // 4,), float(i)), 1)


def _receive() -> list[float]:
    values = []
    if dist.get_rank() == 1:
        for _ in range(CREDIT_MIB):
            tensor = torch.empty(MIB // 4)
            dist.recv(tensor, 0)
            values.append(tensor[-1].item())
    return values


@pytest.mark.parametrize("ending", [_leave, _abort_on_first, _fail])
def test_group_that_ends_leaves_the_other_one_all_of_its_credit(two: Ranks, ending: Callable[[], None]) -> None:
    two.run(_begin)
    ahead = [(0, EARLY_MIB * MIB), (EARLY_MIB * MIB, 0)]
    nothing = [(0, 0), (0, 0)]
    assert two.run(_comes_to, ahead) == ahead
    two.run(ending)
    assert two.run(_comes_to, nothing) == nothing
    # All of the credit goes out though nobody has posted a receive.
    two.run(_send_all_credit_early)
    all_of_it = [(0, CREDIT_MIB * MIB), (CREDIT_MIB * MIB, 0)]
    assert two.run(_comes_to, all_of_it) == all_of_it
    assert two.run(_receive)[1] == [float(i) for i in range(CREDIT_MIB)]
    assert two.run(_comes_to, nothing) == nothing
