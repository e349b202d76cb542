"""What callers see of a collective beside its values is Gloo's: autograd, flags, bad arguments, counting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import collective_cases
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from harness import Ranks, gloo_group, ranks_fixture

from geocomm.errors import InvalidArgumentError

pytestmark = pytest.mark.multiprocess

ranks = ranks_fixture({"1+1": ["a", "b"], "2+2": ["a", "a", "b", "b"], "1+3": ["a", "b", "b", "b"]})

PART = 6  # elements for each rank: what is cut into parts has this many times the number of ranks


def _inference(values: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return values.clone()


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "leaf": lambda values: torch.nn.Parameter(values.clone()),
    "view of a leaf": lambda values: torch.nn.Parameter(values.clone()).view(2, -1).view(-1),
    "chunk": lambda values: (torch.cat([values, values]).requires_grad_() * 1).chunk(2)[0],
    "inference": _inference,
    "strided": lambda values: values.repeat_interleave(2).requires_grad_()[::2],
}


# Gloo does not look at strides: what it should give is what it gives for a tensor without gaps.
GLOO_KINDS = KINDS | {"strided": lambda values: values.clone().requires_grad_() * 1}


def _all_reduce(make: Callable[[torch.Tensor], torch.Tensor], group: Any) -> list[torch.Tensor]:
    tensor = make(_values(group))
    dist.all_reduce(tensor, group=group)
    return [tensor]


def _broadcast(make: Callable[[torch.Tensor], torch.Tensor], group: Any) -> list[torch.Tensor]:
    tensor = make(_values(group))
    dist.broadcast(tensor, 0, group=group)
    return [tensor]


def _reduce(make: Callable[[torch.Tensor], torch.Tensor], group: Any) -> list[torch.Tensor]:
    tensor = make(_values(group))
    dist.reduce(tensor, 0, group=group)
    return [tensor] if dist.get_rank() == 0 else []


def _all_gather(make: Callable[[torch.Tensor], torch.Tensor], group: Any) -> list[torch.Tensor]:
    outputs = [torch.zeros_like(_values(group)) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, make(_values(group)), group=group)
    return outputs


def _all_gather_into(make: Callable[[torch.Tensor], torch.Tensor], group: Any) -> list[torch.Tensor]:
    output = torch.zeros(_values(group).numel() * dist.get_world_size())
    collective_cases.gather_single(output, make(_values(group)), group)
    return [output]


def _all_gather_written(make: Callable[[torch.Tensor], torch.Tensor], group: Any) -> list[torch.Tensor]:
    outputs = [make(torch.zeros_like(_values(group))) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, _values(group), group=group)
    return outputs


def _gather(make: Callable[[torch.Tensor], torch.Tensor], group: Any) -> list[torch.Tensor]:
    root = dist.get_rank() == 0
    outputs = [torch.zeros_like(_values(group)) for _ in range(dist.get_world_size())] if root else None
    dist.gather(make(_values(group)), outputs, 0, group=group)
    return outputs or []


def _scatter(make: Callable[[torch.Tensor], torch.Tensor], group: Any) -> list[torch.Tensor]:
    root = dist.get_rank() == 0
    inputs = [make(_values(group) + rank) for rank in range(dist.get_world_size())] if root else None
    output = torch.zeros_like(_values(group))
    dist.scatter(output, inputs, 0, group=group)
    return [output]


def _reduce_scatter(make: Callable[[torch.Tensor], torch.Tensor], group: Any) -> list[torch.Tensor]:
    output = torch.zeros(PART)
    dist.reduce_scatter(output, [make(part) for part in _values(group).split(PART)], group=group)
    return [output]


def _all_to_all_single(make: Callable[[torch.Tensor], torch.Tensor], group: Any) -> list[torch.Tensor]:
    output = torch.zeros_like(_values(group))
    dist.all_to_all_single(output, make(_values(group)), group=group)
    return [output]


def _values(group: Any) -> torch.Tensor:
    count = PART * dist.get_world_size(group)
    return torch.arange(count, dtype=torch.float32) + 100 * dist.get_rank()


OPERATIONS = {
    function.__name__[1:]: function
    for function in (
        _all_reduce,
        _broadcast,
        _reduce,
        _all_gather,
        _all_gather_into,
        _all_gather_written,
        _gather,
        _scatter,
        _reduce_scatter,
        _all_to_all_single,
    )
}


def _seen(name: str, make: Callable[[torch.Tensor], torch.Tensor], group: Any) -> list[Any]:
    """Of each tensor that a call has written: its values, its flags, and the gradients that come of using it."""
    seen: list[Any] = []
    for tensor in OPERATIONS[name](make, group):
        weight = torch.nn.Parameter(torch.ones(tensor.numel()))
        gradient = None
        if not tensor.is_inference():
            (tensor.detach() * weight).sum().backward()
            gradient = weight.grad.tolist() if weight.grad is not None else None
        flags = [tensor.requires_grad, tensor.is_leaf, tensor.is_inference()]
        # Gloo's reduce_scatter alone hands out a result that requires a gradient, which never crosses the network.
        seen.append([tensor.tolist(), [] if name == "reduce_scatter" else flags, gradient])
    return seen


def _differences(name: str) -> list[str]:
    wrong = []
    for kind in KINDS:
        try:
            expected = _seen(name, GLOO_KINDS[kind], gloo_group())
        except (RuntimeError, ValueError):  # where Gloo refuses, any answer will do that leaves the group alive
            expected = None
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
    assert ranks.run(_differences, name) == [[]] * ranks.size


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


def _group() -> Any:
    return dist.group.WORLD


FLOATS = 4
BAD_CALLS: dict[str, Callable[[], Any]] = {
    "broadcast from a root that is not there": lambda: _group().broadcast(torch.ones(FLOATS), 1 << 30),
    "broadcast from a negative root": lambda: _group().broadcast(torch.ones(FLOATS), -1),
    "reduce to a root that is not there": lambda: _group().reduce(torch.ones(FLOATS), 5),
    "scatter from a root that is not there": lambda: _group().scatter(torch.ones(FLOATS), [], 5),
    "gather to a root that is not there": lambda: _group().gather([], torch.ones(FLOATS), 5),
    "send to a rank that is not there": lambda: _group().send([torch.ones(FLOATS)], 99, 0),
    "send to itself": lambda: _group().send([torch.ones(FLOATS)], dist.get_rank(), 0),
    "send with a negative tag": lambda: _group().send([torch.ones(FLOATS)], 1 - min(dist.get_rank(), 1), -1),
    "recv from a rank that is not there": lambda: _group().recv([torch.ones(FLOATS)], 99, 0),
    "recv with a negative tag": lambda: _group().recv([torch.ones(FLOATS)], 1 - min(dist.get_rank(), 1), -1),
    "all_gather into too few tensors": lambda: _group().allgather([[torch.ones(FLOATS)]], [torch.ones(FLOATS)]),
    "all_gather into another size": lambda: _group().allgather(
        [[torch.ones(FLOATS + 1) for _ in range(dist.get_world_size())]], [torch.ones(FLOATS)]
    ),
    "all_gather into another dtype": lambda: _group().allgather(
        [[torch.ones(FLOATS, dtype=torch.int32) for _ in range(dist.get_world_size())]], [torch.ones(FLOATS)]
    ),
    "reduce_scatter of too few tensors": lambda: _group().reduce_scatter([torch.ones(FLOATS)], [[torch.ones(FLOATS)]]),
    "all_reduce in place of shared elements": lambda: dist.all_reduce(torch.ones(1).expand(FLOATS)),
    "broadcast into shared elements": lambda: dist.broadcast(torch.ones(1).expand(FLOATS), 0),
    "mean of bools": lambda: dist.all_reduce(torch.ones(FLOATS, dtype=torch.bool), dist.ReduceOp.AVG),
    "all_to_all_single with splits that do not add up": lambda: dist.all_to_all_single(
        torch.ones(FLOATS), torch.ones(FLOATS), [1] * dist.get_world_size(), [9] * dist.get_world_size()
    ),
}


def _bad_call(name: str) -> list[Any]:
    try:
        BAD_CALLS[name]().wait()
    except InvalidArgumentError as error:
        kind = str(error)
    except Exception as error:
        return [f"{type(error).__name__}: {error}", 0.0]
    else:
        return ["no error", 0.0]
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    return ["" if kind else "no message", tensor[0].item()]


@pytest.mark.parametrize("name", BAD_CALLS)
def test_call_with_bad_arguments_is_refused_on_this_rank_and_the_group_lives(ranks: Ranks, name: str) -> None:
    assert ranks.run(_bad_call, name) == [["", float(ranks.size)]] * ranks.size


def _integer_means() -> list[list[int]]:
    found = []
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8):
        values = [7, 1] if dtype == torch.uint8 else [-7, 5]
        tensor = torch.tensor(values, dtype=dtype) + dist.get_rank()
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        found.append(tensor.tolist())
    return found


def test_mean_of_integers_is_their_sum_divided_towards_zero(ranks: Ranks) -> None:
    offset = sum(range(ranks.size))

    def mean(value: int) -> int:
        return int((value * ranks.size + offset) / ranks.size)

    expected = [[mean(-7), mean(5)]] * 3 + [[mean(7), mean(1)]]
    assert ranks.run(_integer_means) == [expected] * ranks.size


def _complex() -> list[bool]:
    rank, size = dist.get_rank(), dist.get_world_size()
    one = torch.complex(torch.arange(4.0) + rank, torch.ones(4) * rank)
    total = torch.complex(torch.arange(4.0) * size + sum(range(size)), torch.ones(4) * sum(range(size)))
    pg = _group()
    summed = one.clone()
    pg.allreduce([summed]).wait()
    reduced = one.clone()
    pg.reduce(reduced, 0).wait()
    scattered = torch.zeros(4, dtype=torch.complex64)
    pg.reduce_scatter([scattered], [[one.clone() for _ in range(size)]]).wait()
    single = torch.zeros(4, dtype=torch.complex64)
    pg._reduce_scatter_base(single, one.repeat(size)).wait()
    several = [torch.zeros(4, dtype=torch.complex64)]
    pg.reduce_scatter_tensor_coalesced(several, [one.repeat(size)]).wait()
    together = [one.clone(), one.clone()]
    pg.allreduce_coalesced(together).wait()
    found = [summed, scattered, single, *several, *together, *([reduced] if rank == 0 else [])]
    return [torch.equal(tensor, total) for tensor in found]


def test_reductions_of_complex_numbers_give_their_sums(ranks: Ranks) -> None:
    assert all(all(found) for found in ranks.run(_complex))


def _sequence() -> list[int]:
    backend = _group()._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()
    for _ in range(3):
        dist.all_reduce(torch.ones(3))
    return [before, backend._get_sequence_number_for_group() - before]


def test_sequence_number_counts_the_operations_alike_on_all_ranks(ranks: Ranks) -> None:
    found = ranks.run(_sequence)
    assert [count for _, count in found] == [3] * ranks.size
    assert len({before for before, _ in found}) == 1
