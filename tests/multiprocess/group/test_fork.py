"""Forked children: data loading workers, and whatever else a program forks, beside a process group and after it."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
import select
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from geocomm.security.job_ca import JobCa
from support.harness import Failure, Ranks, failure_of
from support.local_jobs import free_port
from support.warm_ranks import warm_ranks

PATIENCE_S = 60
LONG = timedelta(minutes=30)
"""Nothing in these tests may wait for it to pass."""


def _in_child(function: Callable[[], Any]) -> Any:
    """What the function returns in a forked child of this process; a Failure where it raises."""
    readable, writable = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            outcome = function()
        except BaseException as error:
            outcome = failure_of(error)
        try:
            os.write(writable, pickle.dumps(outcome))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writable)
    try:
        if not select.select([readable], [], [], PATIENCE_S)[0]:
            raise TimeoutError("the forked child does not answer")
        return pickle.loads(os.read(readable, 1 << 16))
    finally:
        os.close(readable)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _with_keys(folder: Path) -> dict[int, dict[str, str]]:
    """Variables of ranks 0 and 1, at sites a and b."""
    JobCa.create(folder / "keys", "run7", ["a", "b"], 30)
    return {rank: {"GEOCOMM_KEYS": str(folder / "keys" / site)} for rank, site in enumerate("ab")}


def _sum(elements: int = 1000, *, async_op: bool = False) -> float:
    tensor = torch.full((elements,), float(dist.get_rank() + 1))
    work = dist.all_reduce(tensor, async_op=async_op)
    if async_op:
        work.wait()
    return tensor.sum().item() / elements


# ---- workers


class _Slow(torch.utils.data.Dataset):
    """A transform that takes longer than the test, and tells of its beginning."""

    def __init__(self, begun: int) -> None:
        self._begun = begun

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        os.write(self._begun, b"!")
        signal.pause()
        return index


_loaders: list[Any] = []  # of the rank process


def _start_workers() -> list[int]:
    multiprocessing.current_process().daemon = False  # else it may have no children
    readable, writable = os.pipe()
    slow = torch.utils.data.DataLoader(_Slow(writable), num_workers=2, multiprocessing_context="fork")
    _loaders.append(iter(slow))
    for _ in range(2):  # a worker between two items looks whether its parent lives
        assert select.select([readable], [], [], PATIENCE_S)[0]
        os.read(readable, 1)
    return [worker.pid for worker in _loaders[-1]._workers]


@contextlib.contextmanager
def _workers_of(ranks: Ranks, rank: int) -> Iterator[list[int]]:
    """The process ids of data loading workers of a rank, each in the middle of an item."""
    (started,) = ranks.outcomes(_start_workers, ranks=[rank])
    assert started.value, started
    try:
        yield started.value
    finally:
        for pid in started.value:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


@pytest.mark.parametrize("sites", [["a", "b"], ["a", "a", "b"]])
def test_killed_rank_is_noticed_while_its_workers_live(sites: list[str]) -> None:
    lost = len(sites) - 1
    survivors = list(range(lost))
    with Ranks(sites, environment={"GEOCOMM_LINK_DEADLINE": "1800"}, time_limit=PATIENCE_S) as ranks:
        ranks.init(timeout=LONG)
        ranks.run(_sum)
        with _workers_of(ranks, lost) as workers:
            ranks.begin(_sum, ranks=survivors)
            ranks.signal(lost, signal.SIGKILL)
            for outcome in ranks.finish(ranks=survivors):
                outcome.require("PeerLostError")
            assert all(_is_running(pid) for pid in workers)


def test_restart_on_a_pinned_port_succeeds_while_workers_of_the_killed_rank_live() -> None:
    pinned = {1: {"GEOCOMM_PORT": str(free_port())}}
    with Ranks(["a", "b"], environment_of=pinned) as ranks:
        ranks.init(timeout=LONG)
        with _workers_of(ranks, 1) as workers:
            ranks.signal(1, signal.SIGKILL)
            with Ranks(["a", "b"], environment_of=pinned) as again:
                again.init()
                assert again.run(_sum) == [3.0, 3.0]
                again.destroy()
            assert all(_is_running(pid) for pid in workers)


def _descriptors(pid: int | str = "self") -> list[str]:
    """What the process's descriptors lead to, each with its number in the kernel where it has one."""
    links = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return sorted(link for link in links if link.startswith(("socket:", "anon_inode:[event")))


def test_workers_hold_no_descriptor_of_the_group() -> None:
    with Ranks(["a", "b"]) as ranks:
        before = ranks.run(_descriptors)
        ranks.init()
        ranks.run(_sum)
        assert len(ranks.run(_descriptors)[0]) >= len(before[0]) + 5  # listener, streams, epoll, eventfd
        with _workers_of(ranks, 0) as workers:
            for pid in workers:
                events = [link for link in _descriptors(pid) if link.startswith("anon_inode:")]
                assert events == [link for link in before[0] if link.startswith("anon_inode:")]
                now = set(ranks.outcomes(_descriptors, ranks=[0])[0].value)
                assert not set(_descriptors(pid)) & (now - set(before[0])) - set(events)


def _meet_at_hub(port: int) -> list[int]:
    """The processes that this one has started by then."""
    dist.init_process_group("geocomm", init_method=f"geocomm://127.0.0.1:{port}", timeout=LONG)
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def test_hub_and_tunnel_of_killed_ranks_end_while_their_workers_live(tmp_path: Path) -> None:
    of_rank = _with_keys(tmp_path)
    with Ranks(["a", "b"], environment_of=of_rank) as ranks:
        started = ranks.run(_meet_at_hub, free_port())
        assert all(started)
        with _workers_of(ranks, 0) as workers, _workers_of(ranks, 1) as others:
            assert all(_is_running(pid) for pids in started for pid in pids)
            for rank in (0, 1):
                ranks.signal(rank, signal.SIGKILL)
            until = time.monotonic() + PATIENCE_S
            while any(_is_running(pid) for pids in started for pid in pids) and time.monotonic() < until:
                time.sleep(0.1)
            assert not any(_is_running(pid) for pids in started for pid in pids)
            assert all(_is_running(pid) for pid in workers + others)


# ---- a child that uses the parent's group


def _use(call: str) -> Any:
    tensor = torch.ones(1000)
    match call:
        case "sync":
            return _sum()
        case "async":
            return _sum(async_op=True)
        case "large":
            return _sum(1 << 20)
        case "barrier":
            return dist.barrier()
        case "send":
            return dist.send(tensor, 1 - dist.get_rank())
        case "recv":
            return dist.recv(tensor, 1 - dist.get_rank())
        case "coalesced":
            with dist._coalescing_manager():
                dist.all_reduce(tensor)
        case "new_group":
            return dist.new_group([0, 1])
    return None


CALLS = ["sync", "async", "large", "barrier", "send", "recv", "coalesced"]


def _use_in_child(call: str) -> Any:
    return _in_child(functools.partial(_use, call))


@pytest.fixture(params=["plaintext", "tls"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ranks]:
    of_rank = _with_keys(tmp_path) if request.param == "tls" else None
    with Ranks(["a", "b"], environment_of=of_rank) as ranks:
        ranks.init()
        yield ranks


@pytest.mark.parametrize("call", CALLS)
def test_collective_in_a_forked_child_is_refused_and_the_parents_stay_right(two: Ranks, call: str) -> None:
    two.run(_sum)
    for rank in (0, 1):
        (outcome,) = two.outcomes(_use_in_child, call, ranks=[rank])
        failure = outcome.value
        assert isinstance(failure, Failure), outcome
        assert "AbortedError" in failure.kinds, failure.traceback
        assert "forked" in failure.message
        assert "init_process_group" in failure.message
    for elements in (8, 1 << 20):
        assert two.run(_sum, elements) == [3.0, 3.0]
    two.destroy()


def _wait_in_child() -> Any:
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    outcome = _in_child(work.wait)
    work.wait()
    return outcome


def test_wait_of_a_forked_child_for_the_parents_operation_is_refused(two: Ranks) -> None:
    for failure in two.run(_wait_in_child):
        assert "AbortedError" in failure.kinds
    assert two.run(_sum) == [3.0, 3.0]
    two.destroy()


def _destroy_in_child() -> Any:
    def destroy() -> Any:
        import geocomm

        dist.destroy_process_group()
        return geocomm.stats()["operations"], dist.is_initialized()

    return _in_child(destroy)


@pytest.mark.parametrize("sites", [["a", "b"], ["a", "a", "b"], ["a", "a"]])
def test_destroy_in_a_forked_child_leaves_the_parents_group_alone(sites: list[str]) -> None:
    with Ranks(sites) as ranks:
        ranks.init()
        expected = ranks.run(_sum)
        assert ranks.run(_destroy_in_child) == [(0, False)] * len(sites)
        assert ranks.run(_sum) == expected
        ranks.destroy()


PROGRAM = """
import os, sys, time
os.environ["GEOCOMM_SITE"] = "SITE"
import torch
import torch.distributed as dist

def total():
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    return tensor.sum().item()

dist.init_process_group("geocomm")
assert total() == 1000 * dist.get_world_size()
BEFORE
child = os.fork()
if child == 0:
    print("child", flush=True)
    sys.exit(7)
until = time.monotonic() + 60
while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
    time.sleep(0.05)
assert ended != (0, 0), "the child did not exit"
assert os.waitstatus_to_exitcode(ended[1]) == 7, ended
AFTER
print("parent", flush=True)
"""
# "destroyed" forks without a group: test_forked_children_make_a_group_of_their_own has that state too.
IN_USE = ("", "assert total() == 1000 * dist.get_world_size()\ndist.destroy_process_group()")


@pytest.mark.parametrize(
    ("site", "before", "after"),
    [
        pytest.param("' + os.environ['RANK'] + '", *IN_USE, id="1+1"),
        pytest.param("' + str(int(os.environ['RANK']) // 2) + '", *IN_USE, id="2+1", marks=pytest.mark.slow),
        pytest.param("one", *IN_USE, id="one site", marks=pytest.mark.slow),
        pytest.param(
            "' + os.environ['RANK'] + '", "dist.destroy_process_group()", "", id="destroyed", marks=pytest.mark.slow
        ),
    ],
)
def test_forked_child_that_returns_exits(tmp_path: Path, site: str, before: str, after: str) -> None:
    script = tmp_path / "program.py"
    ranks = 3 if "//" in site else 2
    text = PROGRAM.replace('"SITE"', f"'{site}'").replace("BEFORE", before).replace("AFTER", after)
    script.write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GEOCOMM_")}
    command = [*warm_ranks().command("torch.distributed.run"), "--standalone", "--nproc-per-node", str(ranks), script]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=kept | {"OMP_NUM_THREADS": "1"}, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert (ended.stdout.count("child"), ended.stdout.count("parent")) == (ranks, ranks)


# ---- a child with a group of its own


def _own_group(path: str, rank: int, size: int) -> tuple[float, float, int]:
    import geocomm

    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(
        "geocomm", store=dist.FileStore(path), rank=rank, world_size=size, timeout=timedelta(seconds=PATIENCE_S)
    )
    sums = _sum(8), _sum(1 << 20, async_op=True)
    operations = geocomm.stats()["operations"]
    dist.destroy_process_group()
    return *sums, operations


def _own_group_in_child(path: str) -> Any:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return _in_child(functools.partial(_own_group, path, rank, size))


@pytest.mark.parametrize("state", ["in use", "destroyed", "failed"])
@pytest.mark.parametrize("sites", [["a", "b"], ["a", "a", "b"]])
def test_forked_children_make_a_group_of_their_own(sites: list[str], state: str) -> None:
    with Ranks(sites, environment={"GEOCOMM_THREADS": "2"}) as ranks:
        ranks.init()
        total = float(sum(range(1, len(sites) + 1)))
        assert ranks.run(_sum, 1 << 20) == [total] * len(sites)
        if state == "destroyed":
            ranks.destroy()
        if state == "failed":
            ranks.outcomes(_mismatched)
        expected = (total, total, 2)
        assert ranks.run(_own_group_in_child, ranks.new_store()) == [expected] * len(sites)
        if state == "in use":
            assert ranks.run(_sum, 1 << 20) == [total] * len(sites)


def _mismatched() -> None:
    dist.all_reduce(torch.ones(10 + (dist.get_rank() == dist.get_world_size() - 1)))


def _compress_in_child() -> Any:
    import geocomm

    values = torch.linspace(-1, 1, 1 << 20)
    expected = geocomm.compress(values, "int8", threads=4)
    return _in_child(lambda: bool(torch.equal(geocomm.compress(values, "int8", threads=4), expected)))


def test_forked_child_compresses_with_threads_of_its_own() -> None:
    with Ranks([None]) as ranks:
        assert ranks.run(_compress_in_child) == [True]


# ---- again and again in one process


def _threads_and_descriptors() -> tuple[list[str], list[str]]:
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):
            names.append(Path(f"/proc/self/task/{task}/comm").read_text().strip())
    # A line that was logged brings the log's writer, which a process keeps on purpose.
    return sorted(name for name in names if name != "geocomm-log"), _descriptors()


def _settled(wanted: Any) -> Any:
    """What this process holds, once it is `wanted`, or after a while, in which idle threads end."""
    until = time.monotonic() + PATIENCE_S
    while (held := _threads_and_descriptors()) != wanted and time.monotonic() < until:
        time.sleep(0.1)
    return held


@pytest.mark.parametrize("sites", [["a", "b"], ["a", "a", "b"], ["a", "a"]])
def test_destroyed_groups_leave_neither_threads_nor_descriptors(sites: list[str]) -> None:
    with Ranks(sites, environment={"GEOCOMM_THREADS": "3"}) as ranks:
        before = ranks.run(_threads_and_descriptors)
        for _ in range(3):
            ranks.init()
            ranks.run(_sum, 1 << 20)
            ranks.destroy()
        for rank, wanted in enumerate(before):
            (held,) = ranks.outcomes(_settled, wanted, ranks=[rank])
            assert held.value == wanted


def _buffer_bytes() -> int:
    """Memory of this process that is its own."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def test_destroyed_group_leaves_no_buffers() -> None:
    with Ranks(["a", "b"]) as ranks:
        ranks.init()
        ranks.run(_sum, 1 << 10)
        ranks.destroy()
        before = ranks.run(_buffer_bytes)
        ranks.init()
        ranks.run(_sum, 1 << 24)
        while_there = ranks.run(_buffer_bytes)
        ranks.destroy()
        end = time.monotonic() + 60  # threads of the group may still end
        while True:
            after = ranks.run(_buffer_bytes)
            rows = zip(before, while_there, after, strict=True)
            if all(last - first < (most - first) / 2 for first, most, last in rows):
                break
            assert time.monotonic() < end, (before, while_there, after)
            time.sleep(0.1)
