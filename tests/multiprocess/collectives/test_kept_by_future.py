"""Operations of which the caller keeps the Future alone: their tensors live until it is done."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from support.collective_cases import gather_single, reduce_scatter_single
from support.harness import Ranks, ranks_fixture

ELEMENTS = 300_000  # in the allocator's reach for what is allocated next
ROUNDS = 5
LIMIT_S = 60.0

ranks = ranks_fixture({"1+1": ["a", "b"], "2+1": ["a", "b", "a"]})

Future = torch.futures.Future[list[torch.Tensor]]


def shard(rank: int, number: int) -> torch.Tensor:
    return torch.full((ELEMENTS,), 100.0 * number + rank)


def all_reduce(number: int) -> Future:
    return dist.all_reduce(shard(dist.get_rank(), number), async_op=True).get_future()


def all_gather(number: int) -> Future:
    output = torch.zeros(ELEMENTS * dist.get_world_size())
    return gather_single(output, shard(dist.get_rank(), number), async_op=True).get_future()


def reduce_scatter(number: int) -> Future:
    parts = torch.cat([shard(dist.get_rank(), number)] * dist.get_world_size())
    return reduce_scatter_single(torch.zeros(ELEMENTS), parts, async_op=True).get_future()


def all_to_all(number: int) -> Future:
    parts = torch.cat([shard(dist.get_rank(), number)] * dist.get_world_size())
    return dist.all_to_all_single(torch.zeros_like(parts), parts, async_op=True).get_future()


def broadcast(number: int) -> Future:
    return dist.broadcast(shard(dist.get_rank(), number), 1, async_op=True).get_future()


def expected(case: Callable[[int], Future], number: int) -> torch.Tensor:
    of_all = [shard(rank, number) for rank in range(dist.get_world_size())]
    if case in (all_reduce, reduce_scatter):
        return torch.stack(of_all).sum(0)
    return of_all[1] if case is broadcast else torch.cat(of_all)


def keep_futures(case: Callable[[int], Future]) -> list[int]:
    """The rounds whose results are wrong. The ranks of the second site are late, so that nothing ends at once."""
    late = threading.Event()
    if dist.get_rank() == 1:
        late.wait(0.3)
    futures = [case(number) for number in range(ROUNDS)]
    gc.collect()
    rubbish = [torch.full((ELEMENTS * 2,), float("nan")) for _ in range(2 * ROUNDS)]
    results = [future.wait() for future in futures]
    del rubbish
    flat = [result[0] if isinstance(result, (list, tuple)) else result for result in results]
    return [number for number in range(ROUNDS) if not torch.equal(flat[number], expected(case, number))]


@pytest.mark.parametrize("case", [all_reduce, all_gather, reduce_scatter, all_to_all, broadcast])
def test_result_is_right_where_the_future_alone_is_kept(ranks: Ranks, case: Callable[[int], Future]) -> None:
    assert ranks.run(keep_futures, case) == [[]] * ranks.size


def let_go() -> bool:
    """Whether a tensor whose Future was waited for and dropped goes, once the thread that completed it has let go."""
    tensor = shard(dist.get_rank(), 1)
    gone = weakref.ref(tensor.untyped_storage())
    future = dist.all_reduce(tensor, async_op=True).get_future()
    del tensor
    future.wait()
    del future
    gc.collect()
    end = time.monotonic() + LIMIT_S
    while gone() is not None and time.monotonic() < end:
        time.sleep(0.01)
    return gone() is None


def test_tensor_is_let_go_with_the_future(ranks: Ranks) -> None:
    assert all(ranks.run(let_go))
