"""Signals while a rank waits for ranks that do not come: their handlers run then, not at the wait's time-out."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.harness import Ranks

ELEMENTS = 100_000
LIMIT = 90
"""Seconds, less than the time-out of the groups here: 30 minutes."""


def _reduce() -> Any:
    return dist.all_reduce(torch.ones(ELEMENTS), async_op=True)


def _receive() -> Any:
    return dist.irecv(torch.ones(ELEMENTS), 1)


def _barrier() -> Any:
    return dist.barrier(async_op=True)


def _reduce_with_feedback() -> Any:
    backend: Any = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    start, stop = backend.encoded_range(ELEMENTS, torch.float32)
    return backend.all_reduce_compressed(torch.ones(ELEMENTS), "int8", torch.zeros(stop - start), False)


def _interrupts(wait: Callable[[], Any]) -> bool:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        wait()
    except KeyboardInterrupt:
        return True
    return False


def _wait_interrupted(begin: Callable[[], Any]) -> bool:
    return _interrupts(begin().wait)


def _wait_until_the_second_signal() -> int:
    heard = []

    def handle(*_: object) -> None:
        heard.append(1)
        if len(heard) == 2:
            raise ProcessLookupError
        send_in(0.5)

    def send_in(delay_s: float) -> None:
        threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGUSR2)).start()

    def wait() -> None:
        send_in(0.3)
        _receive().wait()

    signal.signal(signal.SIGUSR2, handle)
    with pytest.raises(ProcessLookupError):
        wait()
    return len(heard)


def _interrupted_and_again() -> tuple[bool, bool, float, float]:
    """An all-reduce and a receive are interrupted; then the other rank comes."""
    reduced, received = torch.ones(ELEMENTS), torch.zeros(ELEMENTS)
    reduction: Any = dist.all_reduce(reduced, async_op=True)
    receive: Any = dist.irecv(received, 1)
    interrupted = _interrupts(reduction.wait), _interrupts(receive.wait)
    dist.send(torch.zeros(1), 1)
    reduction.wait()
    receive.wait()
    return *interrupted, float(reduced[-1]), float(received[-1])


def _come_late() -> None:
    dist.recv(torch.empty(1), 0)
    tensor = torch.ones(ELEMENTS)
    dist.all_reduce(tensor)
    dist.send(tensor + 1, 0)


def _on_rank_0(ranks: Ranks, function: Callable[..., Any], *arguments: Any) -> Any:
    (outcome,) = ranks.outcomes(function, *arguments, ranks=[0], time_limit=LIMIT)
    assert outcome.failure is None, outcome.failure
    return outcome.value


@pytest.mark.parametrize("begin", [_reduce, _receive, _barrier, _reduce_with_feedback])
def test_ctrl_c_ends_the_wait_for_an_operation(begin: Callable[[], Any]) -> None:
    with Ranks(["rome", "berlin"]) as ranks:
        ranks.init()
        assert _on_rank_0(ranks, _wait_interrupted, begin)


def test_handler_that_raises_nothing_lets_the_wait_go_on() -> None:
    with Ranks(["rome", "berlin"]) as ranks:
        ranks.init()
        assert _on_rank_0(ranks, _wait_until_the_second_signal) == 2


def test_operations_whose_waits_were_interrupted_go_on_and_end() -> None:
    with Ranks(["rome", "berlin"]) as ranks:
        ranks.init()
        ranks.begin(_interrupted_and_again, ranks=[0])
        ranks.begin(_come_late, ranks=[1])
        outcome, late = ranks.finish(time_limit=LIMIT)
        assert (outcome.failure, late.failure) == (None, None)
        assert outcome.value == (True, True, 2.0, 3.0)
