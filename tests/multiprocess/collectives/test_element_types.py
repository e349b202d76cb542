"""Reductions and moves of integers, complex numbers, rare and sparse element types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from geocomm.core.errors import UnsupportedError
from support.collective_cases import LAYOUTS
from support.harness import Ranks, ranks_fixture

ranks = ranks_fixture(LAYOUTS)


def _reduced(tensor: torch.Tensor, op: Any) -> list[torch.Tensor]:
    """What every way to reduce such tensors of all ranks gives: the same, for each of which a rank has the result."""
    group = dist.group.WORLD
    size = group.size()
    summed, reduced, together = tensor.clone(), tensor.clone(), [tensor.clone(), tensor.clone()]
    scattered, single, several = (torch.zeros_like(tensor) for _ in range(3))
    everywhere = torch.cat([tensor] * size)
    scatter_options = dist.ReduceScatterOptions()
    coalesced_options = dist.AllreduceCoalescedOptions()
    scatter_options.reduceOp = coalesced_options.reduceOp = op
    group.allreduce([summed], op).wait()
    group.reduce(reduced, 0, op).wait()
    group.allreduce_coalesced(together, coalesced_options).wait()
    group.reduce_scatter([scattered], [list(everywhere.chunk(size))], scatter_options).wait()
    group._reduce_scatter_base(single, everywhere, scatter_options).wait()
    group.reduce_scatter_tensor_coalesced([several], [everywhere], scatter_options).wait()
    return [summed, scattered, single, several, *together, *([reduced] if group.rank() == 0 else [])]


def _integer_means() -> list[list[list[int]]]:
    found = []
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8):
        values = [7, 1] if dtype == torch.uint8 else [-7, 5]
        tensor = torch.tensor(values, dtype=dtype) + dist.get_rank()
        found.append([result.tolist() for result in _reduced(tensor, dist.ReduceOp.AVG)])
    return found


def test_mean_of_integers_is_their_sum_divided_towards_zero(ranks: Ranks) -> None:
    offset = sum(range(ranks.size))

    def mean(value: int) -> int:
        return int((value * ranks.size + offset) / ranks.size)

    for found in ranks.run(_integer_means):
        for signed in found[:3]:
            assert signed == [[mean(-7), mean(5)]] * len(signed)
        assert found[3] == [[mean(7), mean(1)]] * len(found[3])


def _complex(mean: bool) -> list[bool]:
    rank, size = dist.get_rank(), dist.get_world_size()
    one = torch.complex(torch.arange(4.0) + rank, torch.ones(4) * rank)
    total = torch.complex(torch.arange(4.0) * size + sum(range(size)), torch.ones(4) * sum(range(size)))
    expected = total / size if mean else total
    return [torch.equal(found, expected) for found in _reduced(one, dist.ReduceOp.AVG if mean else dist.ReduceOp.SUM)]


@pytest.mark.parametrize("mean", [False, True])
def test_reductions_of_complex_numbers_give_their_sums_and_means(ranks: Ranks, mean: bool) -> None:
    assert all(all(found) for found in ranks.run(_complex, mean))


def _large_halves() -> list[list[float]]:
    """Means whose sums float16 does not hold, of values that differ by rank, and one that is not normal."""
    tensor = torch.tensor([60_000.0, -40_000.0, 2.0**-10, 2.0**-20], dtype=torch.float16)
    tensor[1] += 1024 * dist.get_rank()
    return [result.tolist() for result in _reduced(tensor, dist.ReduceOp.AVG)]


def test_mean_of_float16_is_finite_where_the_sum_is_not(ranks: Ranks) -> None:
    mean = np.float16(np.mean([-40_000 + 1024 * rank for rank in range(ranks.size)]))
    for found in ranks.run(_large_halves):
        assert found == [[60_000.0, float(mean), 2.0**-10, 2.0**-20]] * len(found)


def _short_integers() -> list[Any]:
    """Results of every way to reduce int16, whose sums wrap here; and what this rank gave."""
    rank = dist.get_rank()
    tensor = torch.tensor([30_000, -30_000, 3, 6], dtype=torch.int16) + rank
    operations = (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.BXOR, dist.ReduceOp.PRODUCT)
    return [[[result.tolist() for result in _reduced(tensor, op)], tensor.tolist()] for op in operations]


def test_reductions_of_int16_wrap(ranks: Ranks) -> None:
    found = ranks.run(_short_integers)
    for index, reduce in enumerate((np.add.reduce, np.maximum.reduce, np.bitwise_xor.reduce, np.multiply.reduce)):
        expected = reduce(np.array([rank[index][1] for rank in found], dtype=np.int16), dtype=np.int16).tolist()
        assert all(results == [expected] * len(results) for results, _ in (rank[index] for rank in found))


RARE = [torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.complex32, torch.complex128, torch.bool]
RARE += [getattr(torch, name) for name in dir(torch) if name.startswith("float8_")]


def _moved(dtype: torch.dtype) -> list[str]:
    """The operations that deliver other bits than were sent."""
    group = dist.group.WORLD
    rank, size = group.rank(), group.size()
    peers = range(size)
    following, last = (rank + 1) % size, (rank - 1) % size

    def values(sender: int, receiver: int = 0) -> torch.Tensor:
        bits = torch.arange(5 * dtype.itemsize) + sender + receiver
        return (bits % 2).to(torch.uint8).view(dtype)

    def broadcast(outputs: list[torch.Tensor]) -> Any:
        outputs[1].view(torch.uint8).copy_(values(rank).view(torch.uint8))
        return group.broadcast(outputs[1], 1)

    def send(outputs: list[torch.Tensor]) -> Any:
        sent = group.send([values(rank)], following, 0)
        group.recv([outputs[last]], last, 0).wait()
        return sent

    own = list(peers)
    to_all = [values(rank, receiver) for receiver in peers]
    if_root = [values(rank, receiver) for receiver in peers] if rank == 1 else []
    cases: dict[str, tuple[Callable[[list[torch.Tensor]], Any], list[int], bool]] = {
        "broadcast": (broadcast, [1], False),
        "all_gather": (lambda outputs: group.allgather(outputs, values(rank)), own, False),
        "gather": (
            lambda outputs: group.gather(outputs if rank == 1 else [], values(rank), 1),
            own * (rank == 1),
            False,
        ),
        "scatter": (lambda outputs: group.scatter(outputs[1], if_root, 1), [1], True),
        "all_to_all": (lambda outputs: group.alltoall(outputs, to_all), own, True),
        "send": (send, [last], False),
    }
    wrong = []
    for name, (call, senders, differs) in cases.items():
        outputs = [torch.zeros(5 * dtype.itemsize, dtype=torch.uint8).view(dtype) for _ in peers]
        try:
            call(outputs).wait()
        except RuntimeError as error:
            wrong.append(f"{name}: {error}")
        else:
            for sender in senders:
                expected = values(sender, rank if differs else 0)
                if not torch.equal(outputs[sender].view(torch.uint8), expected.view(torch.uint8)):
                    wrong.append(f"{name} from {sender}: {outputs[sender].view(torch.uint8).tolist()}")
        dist.all_reduce(torch.ones(3))
    return wrong


@pytest.mark.parametrize("dtype", RARE, ids=str)
def test_tensors_of_a_rare_dtype_are_moved_bit_for_bit(ranks: Ranks, dtype: torch.dtype) -> None:
    assert ranks.run(_moved, dtype) == [[]] * ranks.size


def _refusals(dtype: torch.dtype, names: list[str]) -> list[str]:
    """The errors of operations that no backend has for the dtype, each of which leaves the group alive."""
    group, errors = dist.group.WORLD, []
    size = group.size()
    tensor = torch.zeros(4 * size * dtype.itemsize, dtype=torch.uint8).view(dtype)
    part = torch.zeros(4 * dtype.itemsize, dtype=torch.uint8).view(dtype)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: group.allreduce([tensor]),
        "reduce_scatter": lambda: group._reduce_scatter_base(part, tensor),
        "broadcast": lambda: group.broadcast(tensor, 0),
        "all_gather": lambda: group.allgather([tensor] * size, tensor),
    }
    for name in names:
        try:
            calls[name]().wait()
        except RuntimeError as error:
            errors.append(type(error).__name__)
        dist.all_reduce(torch.ones(3))
    return errors


NOT_REDUCED = [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", [*NOT_REDUCED, torch.uint4], ids=str)
def test_operations_on_a_dtype_without_them_are_refused_and_the_group_lives(ranks: Ranks, dtype: torch.dtype) -> None:
    names = ["all_reduce", "reduce_scatter"] if dtype in NOT_REDUCED else ["all_reduce", "broadcast", "all_gather"]
    assert ranks.run(_refusals, dtype, names) == [["UnsupportedError"] * len(names)] * ranks.size


def _sparse_halves() -> float:
    """torch does not add them on CPUs."""
    with pytest.raises(UnsupportedError):
        dist.all_reduce(torch.eye(3, dtype=torch.float16).to_sparse())
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    return tensor[0].item()


def test_sum_of_sparse_float16_is_refused_and_the_group_lives(ranks: Ranks) -> None:
    assert ranks.run(_sparse_halves) == [float(ranks.size)] * ranks.size


def _sparse_sum() -> bool:
    tensor = torch.eye(3).to_sparse()
    dist.all_reduce(tensor)
    return torch.equal(tensor.to_dense(), dist.get_world_size() * torch.eye(3))


def test_sum_of_sparse_tensors_is_gloos(ranks: Ranks) -> None:
    assert ranks.run(_sparse_sum) == [True] * ranks.size


def _shared_memory() -> list[bool]:
    """All-to-alls whose parts lie in one tensor's memory: in order, in another one, with gaps, and of both ends."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.arange(3.0 * size).view(size, 3)
    sent = whole + 100 * rank
    expected = torch.stack([whole[rank] + 100 * peer for peer in range(size)])
    single, in_place = torch.zeros(size, 3), sent.clone()
    dist.all_to_all_single(single, sent)
    dist.all_to_all_single(in_place, in_place)
    results = [torch.equal(single, expected), torch.equal(in_place, expected)]
    wide = torch.zeros(2 * size, 3)
    wide[::2] = sent
    turned = sent.flip(0).contiguous()
    for inputs in (list(sent), list(wide[::2]), list(turned)[::-1]):
        outputs = list(torch.zeros(size, 3))
        dist.group.WORLD.alltoall(outputs, inputs).wait()
        results.append(torch.equal(torch.stack(outputs), expected))
    return results


def test_all_to_all_of_parts_of_one_tensor(ranks: Ranks) -> None:
    for found in ranks.run(_shared_memory):
        assert all(found), found
