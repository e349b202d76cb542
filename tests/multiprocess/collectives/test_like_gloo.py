"""What callers see of a collective beside its values is Gloo's: autograd, flags, bad arguments, counting."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from geocomm.core.errors import InvalidArgumentError, UnsupportedError
from support import collective_cases
from support.harness import Ranks, gloo_group, ranks_fixture

LAYOUTS = {
    "1+1": ["a", "b"],
    "2+2": ["a", "a", "b", "b"],
    "1+3": ["a", "b", "b", "b"],
    "one site": ["a", "a"],
}
ranks = ranks_fixture(LAYOUTS)


def _is_one_site(ranks: Ranks) -> bool:
    """Where what geocomm does not do itself is left to Gloo, whose refusals are as good."""
    return len(set(ranks.sites)) == 1


PART = 6  # elements for each rank: what is cut into parts has this many times the number of ranks

Make = Callable[[torch.Tensor], torch.Tensor]
Operation = Callable[[Make, Any], list[torch.Tensor]]


def _inference(values: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return values.clone()


def _leaf(values: torch.Tensor) -> torch.Tensor:
    return torch.nn.Parameter(values.clone())


KINDS: dict[str, Make] = {
    "leaf": _leaf,
    "view of a leaf": lambda values: _leaf(values).view(2, -1).view(-1),
    "chunk": lambda values: (_leaf(torch.cat([values, values])) * 1).chunk(2)[0],
    "inference": _inference,
    "strided": lambda values: _leaf(values.repeat_interleave(2))[::2],
}


# Gloo does not look at strides: what it should give is what it gives for a tensor without gaps.
WITHOUT_GAPS = KINDS | {"strided": lambda values: _leaf(torch.cat([values, values]))[: values.numel()]}


def _values(group: Any, first: int = 0) -> torch.Tensor:
    """PART elements for each rank, which differ from those of other ranks and of another `first`."""
    count = PART * group.size()
    return torch.arange(count, dtype=torch.float32) + 100 * group.rank() + 1000 * first


def _zeros(group: Any) -> torch.Tensor:
    return torch.zeros_like(_values(group))


def _list(group: Any, tensor: Callable[[int], torch.Tensor]) -> list[torch.Tensor]:
    return [tensor(rank) for rank in range(group.size())]


OPERATIONS: dict[str, Operation] = {}
"""Each makes some of the tensors of a call, calls, and returns those that were written."""


def operation(function: Operation) -> Operation:
    OPERATIONS[function.__name__] = function
    return function


@operation
def all_reduce(make: Make, group: Any) -> list[torch.Tensor]:
    tensor = make(_values(group))
    dist.all_reduce(tensor, group=group)
    return [tensor]


@operation
def all_reduce_coalesced(make: Make, group: Any) -> list[torch.Tensor]:
    tensors = [make(_values(group)), make(_values(group, 1)[:PART])]
    group.allreduce_coalesced(tensors).wait()
    return tensors


@operation
def broadcast(make: Make, group: Any) -> list[torch.Tensor]:
    tensors = _list(group, lambda root: make(_values(group, root)))
    for root, tensor in enumerate(tensors):
        dist.broadcast(tensor, root, group=group)
    return tensors


@operation
def reduce(make: Make, group: Any) -> list[torch.Tensor]:
    tensors = _list(group, lambda root: make(_values(group, root)))
    for root, tensor in enumerate(tensors):
        dist.reduce(tensor, root, group=group)
    return [tensors[group.rank()]]


@operation
def all_gather(make: Make, group: Any) -> list[torch.Tensor]:
    outputs = _list(group, lambda _: _zeros(group))
    dist.all_gather(outputs, make(_values(group)), group=group)
    return outputs


@operation
def all_gather_written(make: Make, group: Any) -> list[torch.Tensor]:
    outputs = _list(group, lambda _: make(_zeros(group)))
    dist.all_gather(outputs, _values(group), group=group)
    return outputs


@operation
def all_gather_single(make: Make, group: Any) -> list[torch.Tensor]:
    output = _zeros(group)
    collective_cases.gather_single(output, make(_values(group)[:PART]), group)
    return [output]


@operation
def all_gather_single_written(make: Make, group: Any) -> list[torch.Tensor]:
    output = make(_zeros(group))
    collective_cases.gather_single(output, _values(group)[:PART], group)
    return [output]


@operation
def all_gather_coalesced(make: Make, group: Any) -> list[torch.Tensor]:
    outputs = _list(group, lambda _: _zeros(group)), _list(group, lambda _: torch.zeros(PART))
    rows = [list(row) for row in zip(*outputs, strict=True)]
    group.allgather_coalesced(rows, [make(_values(group)), make(_values(group, 1)[:PART])]).wait()
    return outputs[0] + outputs[1]


@operation
def all_gather_singles(make: Make, group: Any) -> list[torch.Tensor]:
    outputs = [_zeros(group), make(_zeros(group))]
    inputs = [make(_values(group)[:PART]), make(_values(group, 1)[:PART])]
    group.allgather_into_tensor_coalesced(outputs, inputs).wait()
    return outputs


@operation
def gather(make: Make, group: Any) -> list[torch.Tensor]:
    results = []
    for root in range(group.size()):
        outputs = _list(group, lambda _: _zeros(group)) if group.rank() == root else None
        dist.gather(make(_values(group, root)), outputs, root, group=group)
        results += outputs or []
    return results


@operation
def gather_written(make: Make, group: Any) -> list[torch.Tensor]:
    outputs = _list(group, lambda _: make(_zeros(group))) if group.rank() == 1 else None
    dist.gather(_values(group), outputs, 1, group=group)
    return outputs or []


@operation
def scatter(make: Make, group: Any) -> list[torch.Tensor]:
    results = _list(group, lambda _: _zeros(group))
    for root, output in enumerate(results):
        inputs = _list(group, lambda rank: make(_values(group, rank))) if group.rank() == root else None
        dist.scatter(output, inputs, root, group=group)
    return results


@operation
def scatter_written(make: Make, group: Any) -> list[torch.Tensor]:
    output = make(_zeros(group))
    dist.scatter(output, _list(group, lambda rank: _values(group, rank)) if group.rank() == 1 else None, 1, group=group)
    return [output]


@operation
def reduce_scatter(make: Make, group: Any) -> list[torch.Tensor]:
    output = torch.zeros(PART)
    dist.reduce_scatter(output, [make(part) for part in _values(group).split(PART)], group=group)
    return [output]


@operation
def reduce_scatter_single(make: Make, group: Any) -> list[torch.Tensor]:
    output = torch.zeros(PART)
    collective_cases.reduce_scatter_single(output, make(_values(group)), group=group)
    return [output]


@operation
def reduce_scatter_written(make: Make, group: Any) -> list[torch.Tensor]:
    output = make(torch.zeros(PART))
    collective_cases.reduce_scatter_single(output, _values(group), group=group)
    return [output]


@operation
def reduce_scatter_singles(make: Make, group: Any) -> list[torch.Tensor]:
    outputs = [torch.zeros(PART), torch.zeros(PART)]
    group.reduce_scatter_tensor_coalesced(outputs, [make(_values(group)), make(_values(group, 1))]).wait()
    return outputs


@operation
def all_to_all(make: Make, group: Any) -> list[torch.Tensor]:
    outputs = _list(group, lambda _: torch.zeros(PART))
    dist.all_to_all(outputs, [make(part) for part in _values(group).split(PART)], group=group)
    return outputs


@operation
def all_to_all_written(make: Make, group: Any) -> list[torch.Tensor]:
    outputs = _list(group, lambda _: make(torch.zeros(PART)))
    dist.all_to_all(outputs, list(_values(group).split(PART)), group=group)
    return outputs


@operation
def all_to_all_single(make: Make, group: Any) -> list[torch.Tensor]:
    output = _zeros(group)
    dist.all_to_all_single(output, make(_values(group)), group=group)
    return [output]


@operation
def all_to_all_single_written(make: Make, group: Any) -> list[torch.Tensor]:
    """In parts of which some are empty: all of a rank's rows to the next rank."""
    output, rank, size = make(_zeros(group)), group.rank(), group.size()
    to_next = [PART * size * int(peer == (rank + 1) % size) for peer in range(size)]
    from_last = [PART * size * int(peer == (rank - 1) % size) for peer in range(size)]
    dist.all_to_all_single(output, _values(group), from_last, to_next, group=group)
    return [output]


@operation
def send(make: Make, group: Any) -> list[torch.Tensor]:
    """Around the ring, in both directions at once."""
    outputs = [_zeros(group), make(_zeros(group))]
    following, last = (group.rank() + 1) % group.size(), (group.rank() - 1) % group.size()
    works = [
        dist.irecv(outputs[0], last, group, tag=1),
        dist.irecv(outputs[1], following, group, tag=2),
        dist.isend(make(_values(group)), following, group, tag=1),
        dist.isend(make(_values(group, 1)), last, group, tag=2),
    ]
    for work in works:
        work.wait()
    return outputs


@operation
def send_with_tags(make: Make, group: Any) -> list[torch.Tensor]:
    """Received in another order than sent."""
    outputs = [_zeros(group), _zeros(group)]
    following, last = (group.rank() + 1) % group.size(), (group.rank() - 1) % group.size()
    works = [dist.isend(make(_values(group, tag)), following, group, tag=tag) for tag in (0, 1)]
    for tag in (1, 0):
        dist.recv(outputs[tag], last, group, tag=tag)
    for work in works:
        work.wait()
    return outputs


def _leaves(node: Any) -> Iterator[torch.Tensor]:
    """The leaves that a graph comes from."""
    if hasattr(node, "variable"):
        yield node.variable
    for before, _ in node.next_functions if node is not None else []:
        yield from _leaves(before)


def _seen(name: str, make: Make, group: Any) -> list[Any]:
    """Of each tensor that a call has written: its values, its flags, and the gradients that come of using it."""
    made: list[torch.Tensor] = []

    def making(values: torch.Tensor) -> torch.Tensor:
        made.append(make(values))
        return made[-1]

    seen: list[Any] = []
    for tensor in OPERATIONS[name](making, group):
        # Gloo's reduce_scatter hands out results that require a gradient, which never crosses the network.
        own_gradients = not (name.startswith("reduce_scatter") and not any(tensor is each for each in made))
        flags = [tensor.requires_grad, tensor.is_leaf, tensor.grad_fn is None] if own_gradients else []
        gradients = []
        if not tensor.is_inference():
            weight = _leaf(torch.ones(tensor.numel()))
            used = tensor if own_gradients else tensor.detach()
            product = (used * weight).sum()
            leaves = list(_leaves(product.grad_fn))
            product.backward()
            gradients = [sorted(leaf.grad.tolist()) for leaf in leaves if leaf.grad is not None]
        seen.append([tensor.tolist(), flags, tensor.is_inference(), gradients])
    return seen


def _gloo_gives(name: str, make: Make) -> list[Any] | None:
    """None where Gloo refuses, which it does by chance where a graph comes to its outputs while it writes to them."""
    given = None
    for _ in range(5 if name == "all_gather_single" else 1):  # as often on each rank
        with contextlib.suppress(RuntimeError, ValueError):
            given = _seen(name, make, gloo_group())
    return given


def _differences(name: str, one_site: bool) -> list[str]:
    wrong = []
    for kind in KINDS:
        if kind == "strided" and name.startswith("send"):
            continue  # inside a site it is Gloo that sends, which refuses these
        # Inside one site it is Gloo's affair what becomes of strided tensors.
        expected = _gloo_gives(name, (KINDS if one_site else WITHOUT_GAPS)[kind])
        try:
            found = _seen(name, KINDS[kind], dist.group.WORLD)
        except (RuntimeError, ValueError) as error:
            found = None if expected is None else str(error)
        if expected is not None and found != expected:
            wrong.append(f"{name} of {kind}: {found}, Gloo: {expected}")
        dist.all_reduce(torch.ones(3))
    return wrong


@pytest.mark.parametrize("name", OPERATIONS)
def test_collective_of_tensors_with_autograd_leaves_what_gloo_leaves(ranks: Ranks, name: str) -> None:
    assert ranks.run(_differences, name, _is_one_site(ranks)) == [[]] * ranks.size


def _functional_gradients(group: Any) -> list[Any]:
    size = dist.get_world_size()
    results: list[Any] = []
    for call in (
        lambda tensor: functional.all_to_all_single_autograd(tensor, None, None, group),
        lambda tensor: functional.all_gather_tensor_autograd(tensor, 0, group),
        lambda tensor: functional.reduce_scatter_tensor_autograd(tensor, "sum", 0, group),
    ):
        tensor = (torch.arange(2.0 * size) + dist.get_rank()).requires_grad_()
        output = call(tensor)
        (output * torch.arange(1.0, output.numel() + 1)).sum().backward()
        results.append([output.tolist(), tensor.grad.tolist() if tensor.grad is not None else None])
    return results


def _functional_differences() -> list[Any]:
    found, expected = _functional_gradients(dist.group.WORLD), _functional_gradients(gloo_group())
    return [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]]


def test_functional_collectives_with_autograd_give_gloos_gradients(ranks: Ranks) -> None:
    assert ranks.run(_functional_differences) == [[]] * ranks.size


def _gathered_metric(group: Any) -> float:
    """Logits that are gathered for a metric must not reach the loss's gradient a second time."""
    weight = torch.nn.Parameter(torch.ones(1))
    logits = weight * (dist.get_rank() + 1.0)
    gathered = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, logits, group=group)
    (torch.cat(gathered).sum() + logits.sum()).backward()
    return float(weight.grad)


def _gathered_metrics() -> list[float]:
    return [_gathered_metric(dist.group.WORLD), _gathered_metric(gloo_group())]


def test_gathered_logits_have_no_gradient_of_their_own(ranks: Ranks) -> None:
    assert ranks.run(_gathered_metrics) == [[rank + 1.0, rank + 1.0] for rank in range(ranks.size)]


def _callback_autograd() -> bool:
    """A callback of a user records for autograd as ever."""
    future = dist.all_reduce(torch.ones(200_000), async_op=True).get_future()
    weight = torch.nn.Parameter(torch.ones(1))
    return bool(future.then(lambda _: (weight * 2).requires_grad).wait())


def test_callback_of_a_future_has_autograd(ranks: Ranks) -> None:
    assert all(ranks.run(_callback_autograd))


FLOATS = 4


def _floats() -> torch.Tensor:
    return torch.ones(FLOATS)


def _each(tensor: torch.Tensor | None = None) -> list[torch.Tensor]:
    """A tensor for each rank."""
    return [(_floats() if tensor is None else tensor).clone() for _ in range(dist.get_world_size())]


def _freed() -> torch.Tensor:
    tensor = _floats()
    tensor.untyped_storage().resize_(0)
    return tensor


def _as_root(group: Any) -> int:
    """Every rank takes itself for the root: what the root alone gives is checked on each."""
    return int(group.rank())


BAD_CALLS: dict[str, Callable[[Any], Any]] = {
    "broadcast from a root that is not there": lambda group: group.broadcast(_floats(), 1 << 30),
    "broadcast from a negative root": lambda group: group.broadcast(_floats(), -1),
    "broadcast into shared elements": lambda group: dist.broadcast(torch.ones(1).expand(FLOATS), 0),
    "reduce to a root that is not there": lambda group: group.reduce(_floats(), 5),
    "reduce to a negative root": lambda group: group.reduce(_floats(), -1),
    "scatter from a root that is not there": lambda group: group.scatter(_floats(), [], 5),
    "scatter of too few tensors": lambda group: group.scatter(_floats(), [_floats()], _as_root(group)),
    "scatter without a list at the root": lambda group: group.scatter(_floats(), [], _as_root(group)),
    "gather to a root that is not there": lambda group: group.gather([], _floats(), 5),
    "gather into too few tensors": lambda group: group.gather([_floats()], _floats(), _as_root(group)),
    "gather without a list at the root": lambda group: group.gather([], _floats(), _as_root(group)),
    "send to a rank that is not there": lambda group: group.send([_floats()], 99, 0),
    "send to itself": lambda group: group.send([_floats()], group.rank(), 0),
    "send with a negative tag": lambda group: group.send([_floats()], 1 - min(group.rank(), 1), -1),
    "recv from a rank that is not there": lambda group: group.recv([_floats()], 99, 0),
    "recv with a negative tag": lambda group: group.recv([_floats()], 1 - min(group.rank(), 1), -1),
    "recv into shared elements": lambda group: group.recv([torch.ones(1).expand(FLOATS)], 1 - min(group.rank(), 1), 0),
    "recv from any rank with a negative tag": lambda group: group.recv_anysource([_floats()], -1),
    "all_gather into too few tensors": lambda group: group.allgather([[_floats()]], [_floats()]),
    "all_gather into another size": lambda group: group.allgather([_each(torch.ones(FLOATS + 1))], [_floats()]),
    "all_gather into another dtype": lambda group: group.allgather([_each(_floats().int())], [_floats()]),
    "all_gather of a tensor into another size": lambda group: collective_cases.gather_single(
        torch.ones(FLOATS + 1), _floats(), group
    ),
    "all_gather_coalesced into too few lists": lambda group: group.allgather_coalesced(
        [[_floats(), _floats()]], [_floats(), _floats()]
    ),
    "all_gather_coalesced into lists that are too short": lambda group: group.allgather_coalesced(
        [[tensor] for tensor in _each()], [_floats(), _floats()]
    ),
    "several all_gathers into too few tensors": lambda group: group.allgather_into_tensor_coalesced(
        [torch.cat(_each())], [_floats(), _floats()]
    ),
    "several all_gathers into another size": lambda group: group.allgather_into_tensor_coalesced(
        [torch.cat(_each()), _floats()[1:]], [_floats(), _floats()]
    ),
    "reduce_scatter of too few tensors": lambda group: group.reduce_scatter([_floats()], [[_floats()]]),
    "reduce_scatter of a tensor of another size": lambda group: collective_cases.reduce_scatter_single(
        _floats(), torch.ones(FLOATS + 1), group=group
    ),
    "several reduce_scatters of another size": lambda group: group.reduce_scatter_tensor_coalesced(
        [_floats(), _floats()], [torch.cat(_each()), torch.ones(FLOATS + 1)]
    ),
    "all_reduce of freed memory": lambda group: dist.all_reduce(_freed()),
    "all_reduce in place of shared elements": lambda group: dist.all_reduce(torch.ones(1).expand(FLOATS)),
    "all_reduce of several in place of shared elements": lambda group: group.allreduce_coalesced(
        [_floats(), torch.ones(1).expand(FLOATS)]
    ),
    "mean of bools": lambda group: dist.all_reduce(torch.ones(FLOATS, dtype=torch.bool), dist.ReduceOp.AVG),
    "maximum of complex numbers": lambda group: group.allreduce([_floats() * 1j], dist.ReduceOp.MAX),
    "sum of lazily conjugated numbers": lambda group: group._get_backend(torch.device("cpu")).allreduce(
        [(_floats() * 1j).conj()]
    ),
    "scaled sum of integers": lambda group: group.allreduce([_floats().int()], dist._make_nccl_premul_sum(2.0)),
    "all_to_all of too few tensors": lambda group: dist.all_to_all([_floats()], [_floats()]),
    "all_to_all_single of another size": lambda group: dist.all_to_all_single(
        torch.cat(_each()), torch.cat([*_each(), _floats()])
    ),
    "all_to_all_single with splits that do not add up": lambda group: dist.all_to_all_single(
        _floats(), _floats(), [1] * group.size(), [9] * group.size()
    ),
    "all_to_all_single with a negative split": lambda group: dist.all_to_all_single(
        _floats(), _floats(), [FLOATS + 1, -1] + [0] * (group.size() - 2), [FLOATS + 1, -1] + [0] * (group.size() - 2)
    ),
}


def _bad_call(name: str) -> list[Any]:
    group = dist.group.WORLD
    try:
        work = BAD_CALLS[name](group)
        if work is not None:
            work.wait()
    except InvalidArgumentError as error:
        kind = "geocomm" if str(error) else "no message"
    except (RuntimeError, ValueError) as error:
        kind = f"Gloo: {error}"
    else:
        kind = "no error"
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    return [kind, tensor[0].item()]


@pytest.mark.parametrize("name", BAD_CALLS)
def test_call_with_bad_arguments_is_refused_on_this_rank_and_the_group_lives(ranks: Ranks, name: str) -> None:
    found = ranks.run(_bad_call, name)
    if _is_one_site(ranks):
        found = [["geocomm" if kind.startswith("Gloo: ") else kind, total] for kind, total in found]
    assert found == [["geocomm", float(ranks.size)]] * ranks.size


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


def _short_integers() -> list[Any]:
    """Results of every way to reduce int16, whose sums wrap here; and what this rank gave."""
    rank = dist.get_rank()
    tensor = torch.tensor([30_000, -30_000, 3, 6], dtype=torch.int16) + rank
    operations = (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.BXOR, dist.ReduceOp.PRODUCT)
    return [[[result.tolist() for result in _reduced(tensor, op)], tensor.tolist()] for op in operations]


def test_reductions_of_int16_wrap_over_sites(ranks: Ranks) -> None:
    if _is_one_site(ranks):
        pytest.skip("inside one site Gloo refuses them")
    found = ranks.run(_short_integers)
    for index, reduce in enumerate((np.add.reduce, np.maximum.reduce, np.bitwise_xor.reduce, np.multiply.reduce)):
        expected = reduce(np.array([rank[index][1] for rank in found], dtype=np.int16), dtype=np.int16).tolist()
        assert all(results == [expected] * len(results) for results, _ in (rank[index] for rank in found))


RARE = [torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.complex32, torch.complex128, torch.bool]
RARE += [getattr(torch, name) for name in dir(torch) if name.startswith("float8_")]


def _moved(dtype: torch.dtype, refused_by_gloo: bool) -> list[str]:
    """The operations that deliver other bits than were sent. `refused_by_gloo`: it may refuse the dtype."""
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
            wrong += [] if refused_by_gloo and "geocomm" not in str(error) else [f"{name}: {error}"]
        else:
            for sender in senders:
                expected = values(sender, rank if differs else 0)
                if not torch.equal(outputs[sender].view(torch.uint8), expected.view(torch.uint8)):
                    wrong.append(f"{name} from {sender}: {outputs[sender].view(torch.uint8).tolist()}")
        dist.all_reduce(torch.ones(3))
    return wrong


@pytest.mark.parametrize("dtype", RARE, ids=str)
def test_tensors_of_a_rare_dtype_are_moved_bit_for_bit(ranks: Ranks, dtype: torch.dtype) -> None:
    assert ranks.run(_moved, dtype, _is_one_site(ranks)) == [[]] * ranks.size


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
    error = "RuntimeError" if _is_one_site(ranks) else "UnsupportedError"
    assert ranks.run(_refusals, dtype, names) == [[error] * len(names)] * ranks.size


def _sparse_halves() -> float:
    """torch does not add them on CPUs."""
    with pytest.raises(UnsupportedError):
        dist.all_reduce(torch.eye(3, dtype=torch.float16).to_sparse())
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    return tensor[0].item()


def test_sum_of_sparse_float16_is_refused_and_the_group_lives(ranks: Ranks) -> None:
    if _is_one_site(ranks):
        pytest.skip("inside one site it is Gloo's affair")
    assert ranks.run(_sparse_halves) == [float(ranks.size)] * ranks.size


def _sparse_sum() -> bool:
    tensor = torch.eye(3).to_sparse()
    dist.all_reduce(tensor)
    return torch.equal(tensor.to_dense(), dist.get_world_size() * torch.eye(3))


def test_sum_of_sparse_tensors_is_gloos(ranks: Ranks) -> None:
    assert ranks.run(_sparse_sum) == [True] * ranks.size


def _sequence() -> list[int]:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()
    for _ in range(3):
        dist.all_reduce(torch.ones(3))
    return [before, backend._get_sequence_number_for_group() - before]


def test_sequence_number_counts_the_operations_alike_on_all_ranks(ranks: Ranks) -> None:
    found = ranks.run(_sequence)
    assert [count for _, count in found] == [3] * ranks.size
    assert len({before for before, _ in found}) == 1
