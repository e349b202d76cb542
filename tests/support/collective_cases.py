"""One table of collectives: each case runs on a given process group and returns the tensors that it left behind.

Run in rank processes, over geocomm and over Gloo, with the same inputs. A case gets (group, dtype) and draws its inputs
from the rank's own generator, so both runs see the same data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
SMALL, LARGE = 37, 70_001
"""Elements: below and above the size from which reductions take the chunked path; neither divides by any site."""

# torch 2.13 renamed them.
gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Case = Callable[[dist.ProcessGroup, torch.dtype], list[torch.Tensor]]


@dataclass(frozen=True)
class Entry:
    name: str
    case: Case
    dtypes: tuple[torch.dtype, ...]
    tolerance: dict[torch.dtype, float] | None = None
    """Relative to the largest magnitude; None: bit for bit."""


def data(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """This rank's input."""
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    return torch.randint(0, 100, shape, generator=generator).to(dtype)


def _ranks(group: dist.ProcessGroup) -> range:
    return range(dist.get_world_size(group))


def broadcast(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
    results = []
    for root in _ranks(group):
        results.append(data(dtype, LARGE if root == 0 else SMALL, seed=root))
        dist.broadcast(results[-1], root, group=group)
    return results


def all_gather(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
    outputs = [torch.zeros(3, SMALL, dtype=dtype) for _ in _ranks(group)]
    dist.all_gather(outputs, data(dtype, 3, SMALL), group=group)
    return outputs


def all_gather_into_tensor(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
    output = torch.zeros(LARGE * len(_ranks(group)), dtype=dtype)
    gather_single(output, data(dtype, LARGE), group=group)
    return [output]


def gather(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
    results = []
    for root in _ranks(group):
        outputs = [torch.zeros(SMALL, dtype=dtype) for _ in _ranks(group)] if dist.get_rank() == root else None
        dist.gather(data(dtype, SMALL, seed=root), outputs, dst=root, group=group)
        results += outputs or []
    return results


def gather_to_one_tensor(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
    """Gloo has no such operation: `gather` says what it is to give."""
    make = getattr(dist, "gather_single", None) if dist.get_backend(group) == "geocomm" else None
    results = []
    for root in _ranks(group):
        own = data(dtype, 3, SMALL, seed=root)
        output = torch.zeros(len(_ranks(group)), 3, SMALL, dtype=dtype) if dist.get_rank() == root else None
        if make is not None:
            make(own, output, dst=root, group=group)
        else:  # nor has torch before 2.14
            dist.gather(own, None if output is None else list(output), dst=root, group=group)
        results += [] if output is None else [output]
    return results


def scatter(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
    results = []
    for root in _ranks(group):
        results.append(torch.zeros(SMALL, dtype=dtype))
        inputs = [data(dtype, SMALL, seed=10 * root + rank) for rank in _ranks(group)]
        dist.scatter(results[-1], inputs if dist.get_rank() == root else None, src=root, group=group)
    return results


def all_to_all_even(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
    output = torch.zeros(5 * len(_ranks(group)), 7, dtype=dtype)
    dist.all_to_all_single(output, data(dtype, 5 * len(_ranks(group)), 7), group=group)
    return [output]


def all_to_all_uneven(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
    own = dist.get_rank()
    sent = [(own + 2 * rank) % 5 for rank in _ranks(group)]
    received = [(rank + 2 * own) % 5 for rank in _ranks(group)]
    output = torch.zeros(sum(received), 3, dtype=dtype)
    dist.all_to_all_single(output, data(dtype, sum(sent), 3), received, sent, group=group)
    return [output]


def all_to_all_lists(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
    own = dist.get_rank()
    outputs = [torch.zeros(1 + rank + 2 * own, dtype=dtype) for rank in _ranks(group)]
    inputs = [data(dtype, 1 + own + 2 * rank, seed=rank) for rank in _ranks(group)]
    if dist.get_backend(group) != "gloo":
        dist.all_to_all(outputs, inputs, group=group)
        return outputs
    # Gloo takes lists of equal sizes only.
    sizes = [[t.numel() for t in tensors] for tensors in (outputs, inputs)]
    output = torch.cat(outputs)
    dist.all_to_all_single(output, torch.cat(inputs), *sizes, group=group)
    return list(output.split(sizes[0]))


def send_receive_ring(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
    own, size = dist.get_rank(), len(_ranks(group))
    results = [torch.zeros(count, dtype=dtype) for count in (SMALL, LARGE)]
    sends = [dist.isend(data(dtype, t.numel(), seed=i), (own + 1) % size, group, i) for i, t in enumerate(results)]
    receives = [dist.irecv(t, (own - 1) % size, group, i) for i, t in reversed(list(enumerate(results)))]
    for work in [*sends, *receives]:
        work.wait()
    return results


def batch_isend_irecv(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
    own = dist.get_rank()
    results, operations = [], []
    for peer in _ranks(group):
        if peer == own:
            continue
        results.append(torch.zeros(SMALL, dtype=dtype))
        operations.append(dist.P2POp(dist.isend, data(dtype, SMALL, seed=peer), peer, group))
        operations.append(dist.P2POp(dist.irecv, results[-1], peer, group))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return results


def _reduction(op: dist.ReduceOp) -> Case:
    def all_reduce(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
        results = [data(dtype, SMALL), data(dtype, LARGE), data(dtype, 1), data(dtype, 4, 5, 6)]
        for result in results:
            dist.all_reduce(result, op, group=group)
        return results

    return all_reduce


def async_all_reduces(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
    results = [data(dtype, 100 * (i % 7) + 1, seed=i) for i in range(40)]
    works = [dist.all_reduce(result, group=group, async_op=True) for result in results]
    for work in reversed(works):
        work.wait()
    return results


def futures_of_all_reduces(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
    inputs = [data(dtype, SMALL, seed=i) for i in range(5)]
    futures = [dist.all_reduce(t, group=group, async_op=True).get_future() for t in inputs]
    return [future.then(lambda done: done.value()[0] * 2).wait() for future in futures]


def reduce(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
    results = []
    for root in _ranks(group):
        tensor = data(dtype, LARGE if root == 0 else SMALL, seed=root)
        dist.reduce(tensor, root, group=group)
        if dist.get_rank() == root:  # the others' tensors are not defined afterwards
            results.append(tensor)
    return results


def reduce_scatter(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
    output = torch.zeros(2, SMALL, dtype=dtype)
    dist.reduce_scatter(output, [data(dtype, 2, SMALL, seed=rank) for rank in _ranks(group)], group=group)
    return [output]


def reduce_scatter_tensor(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
    output = torch.zeros(LARGE, dtype=dtype)
    reduce_scatter_single(output, data(dtype, LARGE * len(_ranks(group))), group=group)
    return [output]


def coalesced(group: dist.ProcessGroup, dtype: torch.dtype) -> list[torch.Tensor]:
    tensors = [data(dtype, 10 * i + 1, seed=i) for i in range(5)]
    with dist._coalescing_manager(group=group, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    manager.wait()
    return tensors


_BITS = (torch.int32, torch.int64, torch.uint8)
_ALL = (*FLOATS, *INTEGERS)
_SUMS = {torch.float32: 1e-6, torch.float64: 1e-14, torch.float16: 4e-3, torch.bfloat16: 3e-2}

TABLE = [
    *[
        Entry(case.__name__, case, (*_ALL, torch.bool))
        for case in (broadcast, all_gather, gather, scatter, all_to_all_even, all_to_all_uneven)
    ],
    *[
        Entry(case.__name__, case, (torch.float32, torch.bfloat16, torch.uint8, torch.int64))
        for case in (
            all_gather_into_tensor,
            gather_to_one_tensor,
            all_to_all_lists,
            send_receive_ring,
            batch_isend_irecv,
        )
    ],
    Entry("all_reduce SUM", _reduction(dist.ReduceOp.SUM), _ALL, _SUMS),
    Entry("all_reduce PRODUCT", _reduction(dist.ReduceOp.PRODUCT), _ALL, _SUMS),
    Entry("all_reduce MIN", _reduction(dist.ReduceOp.MIN), _ALL),
    Entry("all_reduce MAX", _reduction(dist.ReduceOp.MAX), _ALL),
    Entry("all_reduce AVG", _reduction(dist.ReduceOp.AVG), tuple(FLOATS), _SUMS),
    Entry("all_reduce BAND", _reduction(dist.ReduceOp.BAND), _BITS),
    Entry("all_reduce BOR", _reduction(dist.ReduceOp.BOR), _BITS),
    Entry("all_reduce BXOR", _reduction(dist.ReduceOp.BXOR), _BITS),
    *[
        Entry(case.__name__, case, (torch.float32, torch.bfloat16, torch.int64, torch.int8), _SUMS)
        for case in (async_all_reduces, futures_of_all_reduces, reduce, reduce_scatter, reduce_scatter_tensor)
    ],
    Entry("coalesced", coalesced, (torch.float32, torch.int64), _SUMS),
]


NAMES = [entry.name for entry in TABLE]


def compare(name: str, reference: dist.ProcessGroup) -> list[str]:
    """Run a case over the default group and over `reference`; what differed, one line each."""
    entry = next(entry for entry in TABLE if entry.name == name)
    wrong = []
    for dtype in entry.dtypes:
        expected = entry.case(reference, dtype)
        got = entry.case(dist.group.WORLD, dtype)
        for index, (a, b) in enumerate(zip(expected, got, strict=True)):
            if a.dtype != b.dtype or a.shape != b.shape:
                wrong.append(f"{dtype} [{index}]: {b.dtype} {tuple(b.shape)}, expected {a.dtype} {tuple(a.shape)}")
            elif not same(a, b, (entry.tolerance or {}).get(dtype)):
                worst = (a.double() - b.double()).abs().max().item()
                wrong.append(f"{dtype} [{index}] of shape {tuple(a.shape)}: differs by up to {worst:g}")
    return wrong


def same(a: torch.Tensor, b: torch.Tensor, tolerance: float | None) -> bool:
    if tolerance is None:
        return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
    scale = a.double().abs().max().item() or 1.0
    return (a.double() - b.double()).abs().max().item() <= tolerance * scale


LAYOUTS = {
    "1+1": ["a", "b"],
    "2+2": ["a", "a", "b", "b"],
    "1+3": ["a", "b", "b", "b"],
    "one site": ["a", "a"],
}
"""The sites of the ranks of a group, by name."""
