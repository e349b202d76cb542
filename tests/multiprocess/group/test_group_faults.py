"""Lost ranks, ranks that do not call, calls that do not match: an error on every survivor, and never a hang."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from support.harness import Outcome, Ranks

LIMIT = 50
"""Seconds in which a survivor must have its error: less than the operation's own timeout and the link deadline."""
_model: torch.nn.Module | None = None  # of the rank process


@pytest.fixture
def three(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(["a", "a", "b"], time_limit=LIMIT) as ranks:
        ranks.init(timeout=timedelta(seconds=120))
        yield ranks


def _all_reduce(elements: int = 300_000) -> float:
    tensor = torch.ones(elements)
    dist.all_reduce(tensor)
    return tensor[0].item()


def _all_reduce_by_future() -> float:
    return dist.all_reduce(torch.ones(300_000), async_op=True).get_future().wait()[0][0].item()


def _make_model() -> None:
    global _model
    torch.manual_seed(0)
    _model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(200, 200))


def _backward() -> None:
    _model(torch.ones(4, 200)).sum().backward()


def _error_state() -> tuple[str, str]:
    import geocomm

    record = geocomm.last_error()
    return (record["code"], record["peer"]) if record else ("", "")


def _require_lost(outcomes: list[Outcome], lost: int) -> None:
    for outcome in outcomes:
        failure = outcome.require("DistNetworkError")
        assert "PeerLost" in failure.message, failure.traceback
        assert f"rank {lost} (site " in failure.message


SHAPES = [
    (["a", "b"], 0),
    (["a", "b", "c"], 1),
    (["a", "a", "b", "b"], 3),
    (["a", "a", "b", "b"], 0),
    (["a", "b", "a", "b", "a", "b"], 4),
    (["a", "a", "b", "c", "c"], 2),
]
"""The sites of the ranks, and which rank dies."""


@pytest.fixture(scope="module")
def without_lost() -> Iterator[list[tuple[Ranks, list[Outcome]]]]:
    """Of each shape the ranks, and what its survivors say. All die at once: a lost one is believed after 5 s."""
    with contextlib.ExitStack() as stack:
        groups = [stack.enter_context(Ranks(sites, time_limit=LIMIT)) for sites, _ in SHAPES]
        for ranks in groups:
            ranks.init(timeout=timedelta(seconds=120))
            ranks.run(_all_reduce)
        for ranks, (_, lost) in zip(groups, SHAPES, strict=True):
            ranks.begin(_all_reduce, ranks=_survivors(ranks, lost))
        time.sleep(0.2)
        for ranks, (_, lost) in zip(groups, SHAPES, strict=True):
            ranks.signal(lost, signal.SIGKILL)
        yield [
            (ranks, ranks.finish(ranks=_survivors(ranks, lost)))
            for ranks, (_, lost) in zip(groups, SHAPES, strict=True)
        ]


def _survivors(ranks: Ranks, lost: int) -> list[int]:
    return [rank for rank in range(ranks.size) if rank != lost]


@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=[f"{''.join(sites)}-{lost}" for sites, lost in SHAPES])
def test_rank_that_dies_in_any_shape_of_sites_is_named_by_every_survivor(
    without_lost: list[tuple[Ranks, list[Outcome]]], shape: int
) -> None:
    """Also by those that never talk to it: they hear it from others, long before their own timeout."""
    (ranks, outcomes), lost = without_lost[shape], SHAPES[shape][1]
    _require_lost(outcomes, lost)
    for rank, outcome in zip(_survivors(ranks, lost), outcomes, strict=True):
        message = outcome.require("PeerLostError").message
        assert "its process has ended" in message
        assert "firewall" not in message  # it let the link through
        assert "its process has ended" not in ranks.output(rank)  # the caller says it


@pytest.mark.parametrize("call", [_all_reduce, _all_reduce_by_future, _backward])
def test_call_in_flight_when_a_rank_dies_names_it_on_every_survivor(three: Ranks, call: object) -> None:
    three.run(_make_model)
    three.run(call)
    three.begin(call, ranks=[0, 1])
    time.sleep(0.3)
    three.signal(2, signal.SIGKILL)
    outcomes = three.finish(ranks=[0, 1])
    _require_lost(outcomes, 2)
    if call is _all_reduce:
        for outcome in outcomes:
            failure = outcome.require("PeerLostError")
            assert failure.attributes["code"] == "PeerLost"
            assert failure.attributes["peer"].startswith("rank 2 (site b")
            assert failure.attributes["op"] == "all_reduce"
            assert failure.attributes["seq"] > 0
    for outcome in three.outcomes(_error_state, ranks=[0, 1]):
        assert outcome.value[0] in ("PeerLost", "Aborted")


def test_call_after_a_rank_died_fails_on_every_survivor(three: Ranks) -> None:
    three.run(_all_reduce)
    three.signal(2, signal.SIGKILL)
    time.sleep(0.3)
    _require_lost(three.outcomes(_all_reduce, ranks=[0, 1]), 2)
    for outcome in three.outcomes(_all_reduce, ranks=[0, 1]):
        outcome.require("AbortedError")


def test_call_when_a_rank_of_the_own_site_dies_fails_on_every_survivor(three: Ranks) -> None:
    three.run(_all_reduce)
    three.begin(_all_reduce, ranks=[0, 2])
    time.sleep(0.3)
    three.signal(1, signal.SIGKILL)
    inside, across = three.finish(ranks=[0, 2])
    _require_lost([inside, across], 1)


def _all_reduce_within(seconds: float) -> None:
    group = dist.new_group(timeout=timedelta(seconds=60))
    group.set_timeout(timedelta(seconds=seconds))  # once all have made it
    dist.all_reduce(torch.ones(1000), group=group)


def _only_make_group() -> None:
    dist.new_group(timeout=timedelta(seconds=60))


@pytest.mark.parametrize("absent", [1, 2])
def test_call_that_a_rank_does_not_make_times_out_on_the_others(three: Ranks, absent: int) -> None:
    others = [rank for rank in range(3) if rank != absent]
    three.begin(_all_reduce_within, 2.0, ranks=others)
    three.begin(_only_make_group, ranks=[absent])
    three.finish(ranks=[absent])
    failures = [outcome.require("OperationTimeoutError") for outcome in three.finish(ranks=others)]
    for failure in failures:
        assert "TimeoutError" in failure.kinds
        assert f"rank {absent}" in failure.message or absent == 1


def _mismatched(kind: str) -> None:
    rank = dist.get_rank()
    group = dist.new_group(timeout=timedelta(seconds=120))
    if kind == "collective":
        tensor = torch.ones(1000)
        dist.broadcast(tensor, 0, group=group) if rank == 2 else dist.all_reduce(tensor, group=group)
    elif kind == "size":
        dist.all_reduce(torch.ones(2000 if rank == 2 else 1000), group=group)
    elif kind == "dtype":
        dist.all_reduce(torch.ones(1000, dtype=torch.float64 if rank == 2 else torch.float32), group=group)


@pytest.mark.parametrize("kind", ["collective", "size", "dtype"])
def test_calls_that_do_not_match_fail_with_both_sides_in_the_message(three: Ranks, kind: str) -> None:
    outcomes = three.outcomes(_mismatched, kind)
    explained = [outcome.require("InvalidArgumentError") for outcome in outcomes]
    words = {"collective": ["broadcast", "all_reduce"], "size": ["2000", "1000"], "dtype": ["float64", "float32"]}[kind]
    for failure in explained:
        for word in words:
            assert word in failure.message


def _abort_in_flight() -> list[str]:
    """Rank 2 does not call: only abort ends the operation."""
    group = dist.new_group(timeout=timedelta(seconds=120))
    backend = group._get_backend(torch.device("cpu"))
    if dist.get_rank() == 2:
        dist.barrier()
        return []
    work = dist.all_reduce(torch.ones(1000), group=group, async_op=True)
    threading.Timer(0.3, backend.abort).start()
    names = []
    try:
        work.wait()
    except Exception as error:
        names = [kind.__name__ for kind in type(error).__mro__]
    try:
        dist.all_reduce(torch.ones(1000), group=group)
    except Exception as error:
        names.append(f"next {type(error).__name__}")
    dist.barrier()  # the other groups live on
    return names


def test_abort_in_flight_ends_the_operation_and_spares_other_groups(three: Ranks) -> None:
    first, second, absent = three.run(_abort_in_flight)
    assert absent == []
    for names in (first, second):
        assert "AbortedError" in names
        assert "next AbortedError" in names
    three.destroy()


def _leave_in_flight() -> None:
    if dist.get_rank() != 2:
        dist.all_reduce(torch.ones(1000), async_op=True)
    dist.destroy_process_group()


def test_destroy_with_an_operation_in_flight_does_not_hang(three: Ranks) -> None:
    three.run(_all_reduce)
    three.run(_leave_in_flight)  # within LIMIT


def _recover() -> float:
    dist.destroy_process_group()
    return 0.0


def test_survivors_of_a_lost_rank_make_a_new_group(three: Ranks) -> None:
    three.run(_all_reduce)
    three.signal(2, signal.SIGKILL)
    for outcome in three.outcomes(_all_reduce, ranks=[0, 1]):
        outcome.require("DistNetworkError")
    for outcome in three.outcomes(_recover, ranks=[0, 1]):
        assert outcome.failure is None
    path = three.new_store()
    for outcome in three.outcomes(_init_two, path, ranks=[0, 1]):
        assert outcome.value == 2.0, outcome


def _init_two(path: str) -> float:
    import os

    os.environ["GEOCOMM_SITE"] = f"new-{os.environ['RANK']}"
    dist.init_process_group("geocomm", store=dist.FileStore(path), rank=int(os.environ["RANK"]), world_size=2)
    return _all_reduce()


_parts: list[dist.ProcessGroup] = []  # of the rank process


def _make_parts() -> None:
    _parts[:] = [dist.new_group(members) for members in ([0, 1], [0, 2], [0, 1, 2])]


def _all_reduce_in_part(part: int) -> None:
    dist.all_reduce(torch.ones(300_000), group=_parts[part])


@pytest.mark.parametrize(("part", "lost", "survivors"), [(0, 1, [0]), (1, 2, [0]), (2, 2, [0, 1]), (2, 1, [0, 2])])
def test_first_operation_of_a_subgroup_names_a_rank_that_died_before_it(
    three: Ranks, part: int, lost: int, survivors: list[int]
) -> None:
    """The first group is inside a site, and Gloo's; nothing was sent in the others."""
    three.run(_make_parts)
    three.signal(lost, signal.SIGKILL)
    time.sleep(0.3)
    outcomes = three.outcomes(_all_reduce_in_part, part, ranks=survivors)
    if part == 0:
        # "closed" where Gloo reads the end of the stream, "reset" where bytes of its own had not been read by the dead.
        assert re.search("(closed|reset) by peer", outcomes[0].require("RuntimeError").message)
    else:
        _require_lost(outcomes, lost)


def _init_and_die(path: str, lost: int) -> None:
    import os

    rank = int(os.environ["RANK"])
    dist.init_process_group("geocomm", store=dist.FileStore(path), rank=rank, world_size=3)
    if rank == lost:
        os.kill(os.getpid(), signal.SIGKILL)
    _all_reduce()


def test_rank_that_dies_before_its_connections_are_made_is_named() -> None:
    with Ranks(["a", "a", "b"], time_limit=LIMIT) as ranks:
        outcomes = ranks.outcomes(_init_and_die, ranks.new_store(), 2)
        _require_lost(outcomes[:2], 2)
        assert "its process has ended" in outcomes[0].require("DistNetworkError").message


def _leave_a_sum() -> None:
    dist.all_reduce(torch.ones(3_000_000), async_op=True)


@pytest.mark.parametrize("in_flight", [False, True])
def test_destroy_does_not_wait_for_a_peer_that_is_wedged(three: Ranks, in_flight: bool) -> None:
    three.run(_all_reduce)
    three.signal(2, signal.SIGSTOP)
    if in_flight:
        three.outcomes(_leave_a_sum, ranks=[0, 1])
    for outcome in three.outcomes(dist.destroy_process_group, ranks=[0, 1]):  # within LIMIT
        assert outcome.failure is None, outcome.failure.traceback
    three.signal(2, signal.SIGCONT)
    assert three.outcomes(dist.destroy_process_group, ranks=[2])[0].failure is None
