"""When operations on CUDA tensors hold up a stream: once somebody waits for them, and nothing else before.

Each test runs with the hardware queues that CUDA gives by itself, and with one for all streams, where whatever stops
one stream stops all. As in test_cuda_backend.py two sites of one rank share a GPU; a hang is a failure.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from test_cuda_backend import ddp_steps

from support.harness import Ranks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU and a torch built for it")

ELEMENTS = 300_001
in_flight: dict[str, tuple[dist.Work, torch.Tensor]] = {}


@pytest.fixture(scope="module", params=["8", "1"], ids=["queues", "one_queue"])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    # The first CUDA call of a process can take long.
    with Ranks(["a", "b"], time_limit=120, environment={"CUDA_DEVICE_MAX_CONNECTIONS": request.param}) as ranks:
        ranks.init()
        yield ranks
        ranks.destroy()


def values_of(rank: int, device: str) -> torch.Tensor:
    return torch.arange(ELEMENTS, device=device) % 1000 + rank


def computed(values: torch.Tensor) -> torch.Tensor:
    """The same, after some work of the device's."""
    for _ in range(50):
        values = values + 1
    return values - 50


def receive_before_send(device: str, in_batch: bool) -> bool:
    other = 1 - dist.get_rank()
    received = torch.zeros(ELEMENTS, dtype=torch.int64, device=device)
    if in_batch:
        sent = computed(values_of(dist.get_rank(), device))
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.irecv, received, other), dist.P2POp(dist.isend, sent, other)],
        )
    else:
        receive = dist.irecv(received, other)
        send = dist.isend(computed(values_of(dist.get_rank(), device)), other)
        works = [receive, send]
    for work in works:
        work.wait()
    return torch.equal(received, values_of(other, device))


@pytest.mark.parametrize("in_batch", [False, True], ids=["one_by_one", "batch"])
def test_receive_posted_before_the_send_on_both_ranks_ends(ranks: Ranks, in_batch: bool) -> None:
    assert ranks.run(receive_before_send, "cuda", in_batch) == [True, True]


def compute_under_an_exchange(device: str) -> bool:
    """Begins an all-reduce that the other rank is not in yet; whether the device computes on."""
    reduced = values_of(dist.get_rank(), device)
    in_flight["all_reduce"] = dist.all_reduce(reduced, async_op=True), reduced
    after = computed(values_of(7, device))
    if device == "cuda":
        passed = torch.cuda.Event()
        passed.record()
        passed.synchronize()
    return torch.equal(after, values_of(7, device))


def end_of_all_reduce(device: str) -> bool:
    if "all_reduce" not in in_flight:
        compute_under_an_exchange(device)
    work, reduced = in_flight.pop("all_reduce")
    work.wait()
    return torch.equal(reduced, values_of(0, device) + values_of(1, device))


def test_compute_behind_an_all_reduce_that_nobody_waits_for_yet_goes_on(ranks: Ranks) -> None:
    (outcome,) = ranks.outcomes(compute_under_an_exchange, "cuda", ranks=[0])
    assert outcome.value is True, outcome
    assert ranks.run(end_of_all_reduce, "cuda") == [True, True]


def waits_in_another_order(device: str) -> bool:
    tensors = [values_of(dist.get_rank() + i, device) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    order = range(20) if dist.get_rank() == 0 else (i * 7 % 20 for i in range(20))
    for i in order:
        works[i].wait()
    return all(torch.equal(tensor, values_of(i, device) + values_of(i + 1, device)) for i, tensor in enumerate(tensors))


def test_waits_in_another_order_on_each_rank_end_with_the_sums(ranks: Ranks) -> None:
    assert ranks.run(waits_in_another_order, "cuda") == [True, True]


def nobody_waits(device: str, holds_the_work: bool) -> bool:
    """The operation ends all the same, when nobody waits for its Work or has it any more."""
    reduced = values_of(dist.get_rank(), device)
    work = dist.all_reduce(reduced, async_op=True)
    if holds_the_work:
        while not work.is_completed():
            time.sleep(0.01)
    del work
    if device == "cuda":
        torch.cuda.synchronize()
    return torch.equal(reduced, values_of(0, device) + values_of(1, device))


@pytest.mark.parametrize("holds_the_work", [True, False], ids=["held", "let_go"])
def test_operation_that_nobody_waits_for_ends(ranks: Ranks, holds_the_work: bool) -> None:
    assert ranks.run(nobody_waits, "cuda", holds_the_work) == [True, True]


def held_until_the_group_ends(device: str) -> bool:
    group = dist.new_group()
    reduced = values_of(dist.get_rank(), device)
    work = dist.all_reduce(reduced, async_op=True, group=group)
    dist.destroy_process_group(group)
    return work.is_completed() and torch.equal(reduced, values_of(0, device) + values_of(1, device))


def test_operation_in_flight_when_its_group_is_destroyed_ends(ranks: Ranks) -> None:
    assert ranks.run(held_until_the_group_ends, "cuda") == [True, True]


def capture_between_collectives(device: str) -> tuple[bool, bool, bool]:
    """In mode "global", torch's default, where other threads' calls of the driver may break a capture."""
    source = values_of(3, device)
    captured = torch.zeros_like(source)
    captured.copy_(source * 2)  # as torch asks: once before the capture
    torch.cuda.synchronize()
    tensors = [values_of(dist.get_rank() + i, device) for i in range(4)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        captured.copy_(source * 2)
        time.sleep(0.5)  # exchanges end meanwhile
    for work in works:
        work.wait()
    source += 1
    graph.replay()
    sums = all(torch.equal(t, values_of(i, device) + values_of(i + 1, device)) for i, t in enumerate(tensors))
    return sums, torch.equal(captured, source * 2), refuses_capture(device)


def refuses_capture(device: str) -> bool:
    tensor = values_of(0, device)
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            dist.all_reduce(tensor)
    except RuntimeError as error:
        return "cannot be captured" in str(error)
    return False


def test_capture_while_collectives_are_in_flight_holds_what_was_captured(ranks: Ranks) -> None:
    assert ranks.run(capture_between_collectives, "cuda") == [(True, True, True)] * 2


def test_ddp_of_cuda_modules_ends_with_the_same_parameters_on_all_ranks(ranks: Ranks) -> None:
    (first, _), (second, _) = ranks.run(ddp_steps, "cuda")
    assert first == second
