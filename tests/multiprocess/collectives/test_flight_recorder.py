"""What torch's flight recorder has of geocomm's operations: from torch 2.15 on each, and whether it is completed."""

from __future__ import annotations

import pickle
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from support.harness import Ranks, ranks_fixture

c10d: Any = _distributed_c10d  # its stub lacks the recorder before 2.15

ATTACHED = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
"""Whether torch attaches its recorder to other backends than its own."""
attached = pytest.mark.skipif(not ATTACHED, reason="torch before 2.15 attaches its recorder to no other backend")

ranks = ranks_fixture({"1+1": ["a", "b"], "2": ["a", "a"], "2+1": ["a", "a", "b"]})
RECORDED = {
    "all_reduce": "all_reduce",
    "nothing": "all_reduce",
    "broadcast": "broadcast",
    "all_gather": "_all_gather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_all_single",
    "barrier": "barrier",
    "isend": "send",
    "irecv": "recv",
}
"""What the ranks call, in this order, and what the recorder calls it."""


def _entries(**arguments: Any) -> list[dict[str, Any]]:
    return pickle.loads(c10d._dump_fr_trace(**arguments)).get("entries", [])


def _recorded() -> list[tuple[str, str]]:
    """Of the operations so far: what is called, and how far it is."""
    return [
        (entry["profiling_name"].split(":")[1].split(" ")[0], entry["state"]) for entry in _entries(backend="geocomm")
    ]


def _state_of_last() -> str:
    return _recorded()[-1][1]


def _comes_to_be_completed(entry: int) -> bool:
    end = time.monotonic() + 30
    while _recorded()[entry][1] != "completed" and time.monotonic() < end:
        time.sleep(0.001)
    return _recorded()[entry][1] == "completed"


def _issue_all() -> list[Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    return [
        dist.all_reduce(torch.ones(3), async_op=True),
        dist.all_reduce(torch.ones(0), async_op=True),
        dist.broadcast(torch.ones(3), 0, async_op=True),
        dist.all_gather_into_tensor(torch.zeros(size), torch.ones(1), async_op=True),
        dist.reduce_scatter_tensor(torch.zeros(1), torch.ones(size), async_op=True),
        dist.all_to_all_single(torch.zeros(size), torch.ones(size), async_op=True),
        dist.barrier(async_op=True),
        dist.isend(torch.ones(2), (rank + 1) % size),
        dist.irecv(torch.zeros(2), (rank - 1) % size),
    ]


def _waited_for() -> list[tuple[str, str]]:
    before = len(_recorded())
    for work in _issue_all():
        work.wait()
    return _recorded()[before:]


@attached
def test_operation_that_was_waited_for_is_recorded_as_completed(ranks: Ranks) -> None:
    assert ranks.run(_waited_for) == [[(name, "completed") for name in RECORDED.values()]] * ranks.size


def _dropped() -> list[bool]:
    before = len(_recorded())
    works = _issue_all()
    messages = works[-2:]
    del works  # those of the collectives are nobody's now
    for message in messages:
        message.wait()
    return [_comes_to_be_completed(before + number) for number in range(len(RECORDED))]


@attached
def test_collective_whose_work_was_dropped_is_recorded_as_completed(ranks: Ranks) -> None:
    assert ranks.run(_dropped) == [[True] * len(RECORDED)] * ranks.size


def _asked(how: str) -> tuple[str, str]:
    """What the recorder says of a message that rank 1 has not sent yet to rank 0, and once it has come."""
    if dist.get_rank() != 0:
        dist.barrier()
        if dist.get_rank() == 1:
            dist.send(torch.ones(2), 0)
        return "scheduled", "completed"
    work: Any = dist.irecv(torch.zeros(2), 1)
    number = len(_recorded()) - 1
    before = _state_of_last()
    dist.barrier()
    if how == "is_completed":
        end = time.monotonic() + 30
        while not work.is_completed() and time.monotonic() < end:
            time.sleep(0.001)
    elif how == "get_future":
        work.get_future().wait()
    else:
        work.wait()
    assert work.is_completed()
    return before, "completed" if _comes_to_be_completed(number) else _recorded()[number][1]


@attached
@pytest.mark.parametrize("how", ["wait", "is_completed", "get_future"])
def test_message_is_recorded_as_completed_once_it_has_come(ranks: Ranks, how: str) -> None:
    assert ranks.run(_asked, how) == [("scheduled", "completed")] * ranks.size


def _fails(how: str) -> tuple[str, str]:
    """An operation that rank 0 alone issues, and what became of it."""
    group: Any = dist.new_group(timeout=timedelta(seconds=60))
    if how == "timeout":
        group.set_timeout(timedelta(seconds=1))
    if dist.get_rank() != 0:
        return "", ""
    work: Any = dist.all_reduce(torch.ones(3), group=group, async_op=True)
    if how == "abort":
        group._get_backend(torch.device("cpu")).abort()
    kind = "nothing"
    try:
        work.wait()
    except Exception as error:  # which one is for other tests
        kind = type(error).__name__
    return kind, _recorded()[-1][1]


@attached
@pytest.mark.parametrize("how", ["timeout", "abort"])
def test_operation_that_failed_is_not_recorded_as_completed(how: str) -> None:
    for sites in (["a", "b"], ["a", "a"]):
        with Ranks(sites) as ranks:
            ranks.init()
            (kind, state), _ = ranks.run(_fails, how)
        assert kind != "nothing", f"{sites}: the operation succeeded"
        assert state == "scheduled", f"{sites}: {kind}"


def _group_ends() -> list[str]:
    group: Any = dist.new_group()
    work: Any = dist.all_reduce(torch.ones(3), group=group, async_op=True)
    work.wait()
    dist.destroy_process_group(group)
    dist.barrier()
    return [state for _, state in _recorded()[-2:]]


@attached
def test_entries_outlive_their_group(ranks: Ranks) -> None:
    assert ranks.run(_group_ends) == [["completed"] * 2] * ranks.size


def _hang(folder: str) -> None:
    """Rank 0 waits for an operation that rank 1 has not called; both write what they have."""
    dist.all_reduce(torch.ones(3))
    dist.barrier()
    works: list[Any] = []
    if dist.get_rank() == 0:
        works.append(dist.all_reduce(torch.ones(5), async_op=True))
    Path(folder, f"trace_{dist.get_rank()}").write_bytes(c10d._dump_fr_trace(backend="geocomm"))
    if dist.get_rank() == 1:
        works.append(dist.all_reduce(torch.ones(5), async_op=True))
    for work in works:
        work.wait()


@attached
def test_torchs_analyzer_finds_the_rank_that_has_not_called(tmp_path: Path) -> None:
    from torch.distributed.flight_recorder import fr_trace

    traces = tmp_path / "traces"
    traces.mkdir()
    with Ranks(["a", "b"]) as ranks:
        ranks.init()
        ranks.run(_hang, str(traces))
    fr_trace.main([str(traces), "-o", str(tmp_path / "merged")])
    _, merged = pickle.loads((tmp_path / "merged").read_bytes())
    names = [f"geocomm:{name}" for name in ("all_reduce", "barrier", "all_reduce")]
    assert [row.collective_name for row in merged.collectives] == names
    # Of an operation that not all have called: the ranks that have.
    assert [call.global_rank for call in merged.ncclcalls if call.collective_id is None] == [0]


@pytest.mark.skipif(ATTACHED, reason="for torch before 2.15")
def test_earlier_recorder_has_what_gloo_does_inside_a_site_alone(ranks: Ranks) -> None:
    names = ranks.run(_names_before)
    sites = ranks.sites
    for rank, found in enumerate(names):
        assert all(name.startswith("gloo:") for name in found), found
        assert bool(found) == (sites.count(sites[rank]) > 1)


def _names_before() -> list[str]:
    dist.all_reduce(torch.ones(3))
    return [entry["profiling_name"] for entry in _entries()]
