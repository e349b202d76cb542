"""What callers see of a collective beside its values is Gloo's: autograd, flags, counting."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from support import collective_cases
from support.collective_cases import LAYOUTS
from support.harness import Ranks, gloo_group, ranks_fixture

ranks = ranks_fixture(LAYOUTS)


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


def _differences(name: str) -> list[str]:
    wrong = []
    for kind in KINDS:
        expected = _gloo_gives(name, WITHOUT_GAPS[kind])
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
