"""Messages between ranks of different sites: whoever waits for one, or nobody, it ends once, and in time."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from support.harness import Ranks

ELEMENTS = {"empty": 0, "small": 3, "one chunk": 200_000, "several chunks": 2_000_000}
LATER = 0.2
"""Seconds by which the sender comes after the receiver."""


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    with Ranks(["a", "b"]) as ranks:
        ranks.init(timeout=timedelta(seconds=40))
        yield ranks


def _message(elements: int) -> torch.Tensor:
    return torch.arange(elements, dtype=torch.float32)


def _until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()


def _nobody_waits(elements: int) -> bool:
    if dist.get_rank() == 1:
        time.sleep(LATER)
        return _until(dist.isend(_message(elements), 0).is_completed)
    received = torch.zeros(elements)
    work = dist.irecv(received, 1)
    return _until(work.is_completed) and torch.equal(received, _message(elements))


@pytest.mark.parametrize("elements", ELEMENTS.values(), ids=ELEMENTS)
def test_message_that_nobody_waits_for_completes(two: Ranks, elements: int) -> None:
    assert two.run(_nobody_waits, elements) == [True, True]


def _callback(elements: int) -> bool:
    if dist.get_rank() == 1:
        time.sleep(LATER)
        dist.isend(_message(elements), 0)  # the work is dropped at once
        dist.barrier()
        return True
    received = torch.zeros(elements)
    called = threading.Event()
    seen: list[bool] = []

    def look(future: torch.futures.Future[list[torch.Tensor]]) -> None:
        seen.append(torch.equal(future.value()[0], _message(elements)))
        called.set()

    dist.irecv(received, 1).get_future().then(look)  # this one too
    came = called.wait(30)
    dist.barrier()
    return came and seen == [True]


@pytest.mark.parametrize("elements", ELEMENTS.values(), ids=ELEMENTS)
def test_callback_of_a_message_whose_work_was_dropped_runs_once(two: Ranks, elements: int) -> None:
    assert two.run(_callback, elements) == [True, True]


def _many_wait(elements: int) -> bool:
    if dist.get_rank() == 1:
        time.sleep(LATER)
        dist.send(_message(elements), 0)
        return True
    received = torch.zeros(elements)
    work = dist.irecv(received, 1)
    equal: list[bool] = []

    def wait() -> None:
        work.wait()
        equal.append(torch.equal(received, _message(elements)))

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return equal == [True] * len(threads)


@pytest.mark.parametrize("elements", ELEMENTS.values(), ids=ELEMENTS)
def test_message_that_several_threads_wait_for_completes_for_all(two: Ranks, elements: int) -> None:
    assert two.run(_many_wait, elements) == [True, True]


def _callback_waits() -> bool:
    # Rank 0's callback waits for what rank 1 sends only once it has what rank 0 sends after its wait().
    first, second, third = (torch.full((1,), float(i)) for i in range(1, 4))
    if dist.get_rank() == 1:
        time.sleep(LATER)
        dist.send(first, 0)
        dist.recv(third, 0)
        dist.send(second, 0)
        return True
    called = threading.Event()

    def receive_more(_future: torch.futures.Future[list[torch.Tensor]]) -> None:
        dist.recv(second, 1)
        called.set()

    work = dist.irecv(first, 1)
    work.get_future().then(receive_more)
    work.wait()
    dist.send(third, 1)
    return called.wait(30)


def test_callback_that_waits_for_another_message_does_not_hold_up_the_one_who_waits(two: Ranks) -> None:
    assert two.run(_callback_waits) == [True, True]


def _impatient() -> str:
    if dist.get_rank() == 1:
        dist.barrier()  # once the other one has lost its patience
        dist.send(_message(10), 0)
        return "sent"
    received = torch.zeros(10)
    work = dist.irecv(received, 1)
    with pytest.raises(RuntimeError, match=r"(?i)timed out"):
        work.wait(timedelta(seconds=LATER))
    dist.barrier()
    work.wait()
    return "received" if torch.equal(received, _message(10)) else "other bytes"


def test_wait_with_a_limit_ends_by_it_and_the_message_still_comes(two: Ranks) -> None:
    assert two.run(_impatient) == ["received", "sent"]


def _strided() -> bool:
    if dist.get_rank() == 1:
        dist.send(_message(12).view(3, 4), 0)
        return True
    received = torch.zeros(3, 8)[:, ::2]
    dist.recv(received, 1)
    return torch.equal(received, _message(12).view(3, 4))


def test_message_into_a_strided_tensor_arrives(two: Ranks) -> None:
    assert two.run(_strided) == [True, True]


def _both_directions(rounds: int) -> bool:
    peer = 1 - dist.get_rank()
    received = [torch.zeros(1000 + i) for i in range(rounds)]
    sends = [dist.isend(torch.full((1000 + i,), float(i)), peer, tag=i) for i in range(rounds)]
    receives = [dist.irecv(tensor, peer, tag=i) for i, tensor in enumerate(received)]
    dist.all_reduce(torch.ones(10_000))  # among them
    for work in [*reversed(receives), *sends]:
        work.wait()
    return all(bool((tensor == i).all()) for i, tensor in enumerate(received))


def test_hundreds_of_messages_both_ways_beside_a_collective_all_arrive(two: Ranks) -> None:
    assert two.run(_both_directions, 300) == [True, True]


def _unanswered(waits: bool) -> None:
    work = dist.irecv(torch.zeros(4), 1)
    if not waits:
        _until(work.is_completed)
    work.wait()


@pytest.mark.parametrize("waits", [True, False])
def test_message_that_never_comes_fails_at_the_deadline_naming_the_sender(waits: bool) -> None:
    with Ranks(["a", "b"]) as ranks:
        ranks.init()
        ranks.set_timeout(1)
        ranks.begin(_unanswered, waits, ranks=[0])
        failure = ranks.finish(ranks=[0])[0].require("OperationTimeoutError")  # while rank 1 is there and waits
        assert failure.attributes["code"] == "Timeout"
        assert failure.attributes["peer"].startswith("rank 1 (site b")


def _receive_for_ever() -> None:
    dist.recv(torch.zeros(4), 1)


def test_receiver_whose_sender_dies_gets_its_name() -> None:
    with Ranks(["a", "b"]) as ranks:
        ranks.init(timeout=timedelta(seconds=120))
        ranks.run(_both_directions, 2)
        ranks.begin(_receive_for_ever, ranks=[0])
        time.sleep(LATER)
        ranks.signal(1, signal.SIGKILL)
        failure = ranks.finish(ranks=[0])[0].require("PeerLostError")
        assert failure.attributes["peer"].startswith("rank 1 (site b")
        assert failure.attributes["op"] == "send_recv"


def _receive_without_threads() -> None:
    """Its first operation, while no thread can be made: each would get a stack that no memory holds."""
    libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    assert libc.pthread_getattr_default_np(attributes) == 0
    assert libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 47)) == 0
    assert libc.pthread_setattr_default_np(attributes) == 0
    work = dist.irecv(torch.zeros(4), 1)
    assert work is not None
    time.sleep(3 * LATER)  # it is over before anybody waits
    work.wait()


def _send_too_much() -> None:
    time.sleep(LATER)
    dist.send(torch.ones(1000), 0)


def test_message_that_fails_where_no_thread_can_be_made_is_over_for_who_waits_then() -> None:
    with Ranks(["a", "b"]) as ranks:
        ranks.init(timeout=timedelta(seconds=120))
        ranks.begin(_receive_without_threads, ranks=[0])
        ranks.begin(_send_too_much, ranks=[1])
        failure = ranks.finish(ranks=[0])[0].require("GeocommError")
        assert failure.attributes["op"] == "recv"
