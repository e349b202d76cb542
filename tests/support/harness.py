"""Runs functions on persistent rank processes, so that many cases share one start.

    with Ranks(["a", "a", "b"]) as ranks:
        ranks.init()
        hashes = ranks.run(function_of_a_test_module, argument)

What most test modules want is a group for all their tests: `ranks = ranks_fixture({"2+1": ["a", "a", "b"]})`.

A call has a hard time limit: where a rank does not answer, the stacks of all ranks are part of the failure, and the
processes are killed. The processes are forked from one that has imported what they need (warm_python.py).
"""

from __future__ import annotations

import faulthandler
import functools
import hashlib
import io
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import current_process
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.warm_python import WarmProcess
from support.warm_ranks import warm_ranks, warm_training


class Hang(AssertionError):
    """A rank that did not answer within the time limit."""


@dataclass
class Failure:
    """An exception of a rank, in parts that survive pickling."""

    kinds: list[str]
    message: str
    traceback: str
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """What a call gave on one rank: a value, a failure, or the exit code of a process that died meanwhile."""

    value: Any = None
    failure: Failure | None = None
    exit_code: int | None = None

    def require(self, kind: str) -> Failure:
        """The failure, which must be of that class (by name; base classes count)."""
        assert self.failure is not None, f"expected {kind}, got {self}"
        assert kind in self.failure.kinds, self.failure.traceback
        return self.failure


class Ranks:
    """One process per entry of `sites`: the names that GEOCOMM_SITE gets (None: unset)."""

    def __init__(
        self,
        sites: Sequence[str | None],
        *,
        environment: dict[str, str] | None = None,
        environment_of: dict[int, dict[str, str]] | None = None,
        time_limit: float = 120,
        trains: bool = False,
    ) -> None:
        """trains: forked from what has imported DeepSpeed and the driver, which takes ranks seconds."""
        self.sites = list(sites)
        self.size = len(sites)
        self.time_limit = time_limit
        self._generation = 0
        self._folder = tempfile.TemporaryDirectory(prefix="geocomm-ranks-")
        self._pipes: list[Connection] = []
        self._processes: list[WarmProcess] = []
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("GEOCOMM_", "TORCH_DISTRIBUTED_"))
        }
        for rank, site in enumerate(sites):
            ours, theirs = Pipe()
            variables = {"RANK": str(rank), "WORLD_SIZE": str(self.size), "LOCAL_RANK": "0", "GEOCOMM_THREADS": "1"}
            variables |= {} if site is None else {"GEOCOMM_SITE": site}
            variables |= (environment or {}) | (environment_of or {}).get(rank, {})
            with self._log(rank).open("a") as log, theirs:
                process = (warm_training() if trains else warm_ranks()).start(
                    "support.rank_process", [], inherited | variables, log=log, stdin=theirs.fileno()
                )
            ours.send((bytes(current_process().authkey), sys.path))
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, hard."""
        self._kill()
        self._folder.cleanup()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def init(self, **arguments: Any) -> None:
        """`init_process_group("geocomm")` on all ranks; again after `destroy`."""
        self.run(_init, self.new_store(), arguments)

    def set_timeout(self, timeout_s: float) -> None:
        """Of the default group, once all ranks have met: on a busy machine that takes them longer."""
        self.run(_set_timeout, timeout_s)

    def try_init(self, **arguments: Any) -> list[Outcome]:
        """Like `init`, for tests of what goes wrong."""
        return self.outcomes(_init, self.new_store(), arguments)

    def destroy(self) -> None:
        """`destroy_process_group` on all ranks."""
        if any(process.poll() is None for process in self._processes):  # else a hang was reported already
            self.run(_destroy)

    def new_store(self) -> str:
        """Path of a new FileStore, where the ranks meet (a TCPStore may wait for a name server at each connection)."""
        self._generation += 1
        return str(Path(self._folder.name) / f"store{self._generation}")

    def run(self, function: Callable[..., Any], *arguments: Any, time_limit: float | None = None) -> list[Any]:
        """function(*arguments) on every rank; their results in rank order. Fails with every rank's traceback."""
        outcomes = self.outcomes(function, *arguments, time_limit=time_limit)
        bad = [
            (rank, outcome) for rank, outcome in enumerate(outcomes) if outcome.failure or outcome.exit_code is not None
        ]
        if bad:
            texts = [
                f"rank {rank}: {outcome.failure.traceback if outcome.failure else outcome}\n{self._tail(rank)}"
                for rank, outcome in bad
            ]
            raise AssertionError("\n".join(texts))
        return [outcome.value for outcome in outcomes]

    def outcomes(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        time_limit: float | None = None,
        ranks: Sequence[int] | None = None,
    ) -> list[Outcome]:
        """Like `run`, with failures as values; on some ranks only if `ranks` says so."""
        self.begin(function, *arguments, ranks=ranks)
        return self.finish(time_limit=time_limit, ranks=ranks)

    def begin(self, function: Callable[..., Any], *arguments: Any, ranks: Sequence[int] | None = None) -> None:
        for rank in range(self.size) if ranks is None else ranks:
            self._pipes[rank].send((function, arguments))

    def finish(self, *, time_limit: float | None = None, ranks: Sequence[int] | None = None) -> list[Outcome]:
        """The outcomes of the calls begun, in the order of `ranks`."""
        limit = self.time_limit if time_limit is None else time_limit
        until = time.monotonic() + limit
        order = list(range(self.size)) if ranks is None else list(ranks)
        found: dict[int, Outcome] = {}
        while len(found) < len(order):
            waiting = {self._pipes[rank]: rank for rank in order if rank not in found}
            ready = wait(list(waiting), timeout=max(until - time.monotonic(), 0))
            if not ready:
                stacks = self._stacks()
                self._kill()  # nothing can be asked of them any more
                raise Hang(f"ranks {sorted(waiting.values())} did not answer within {limit:g} s\n{stacks}")
            for pipe in ready:
                rank = waiting[pipe]
                try:
                    found[rank] = pipe.recv()
                except (EOFError, ConnectionError):
                    found[rank] = Outcome(exit_code=self._processes[rank].wait())
        return [found[rank] for rank in order]

    def signal(self, rank: int, number: signal.Signals) -> None:
        self._processes[rank].send_signal(number)

    def output(self, rank: int) -> str:
        """What the rank wrote to stdout and stderr."""
        return self._log(rank).read_text(errors="replace")

    def _log(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank{rank}.log"

    def _tail(self, rank: int, size: int = 6000) -> str:
        return f"--- output of rank {rank}\n{self.output(rank)[-size:]}"

    def _stacks(self) -> str:
        for process in self._processes:
            process.send_signal(signal.SIGUSR1)
        time.sleep(1)
        return "\n".join(self._tail(rank) for rank in range(self.size))


@contextmanager
def joined(sites: Sequence[str | None], **arguments: Any) -> Iterator[Ranks]:
    """Ranks(sites, **arguments) in a process group, which they destroy unless the body fails."""
    with Ranks(sites, **arguments) as ranks:
        ranks.init()
        yield ranks
        ranks.destroy()


def ranks_fixture(layouts: Mapping[str, Sequence[str | None]], **arguments: Any) -> Any:
    """A fixture for a test module, of its name there: `joined` ranks of each layout in turn, for all tests at once."""

    @pytest.fixture(scope="module", params=layouts.values(), ids=layouts.keys())
    def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
        with joined(request.param, **arguments) as made:
            yield made

    return ranks


@functools.cache
def gloo_group() -> dist.ProcessGroup:
    """Of all ranks of the process group that this rank process joins, to compare with; they call it together first."""
    return dist.new_group(backend="gloo")


def links_over_b(folder: Path, rtt_s: Callable[[int, int], float]) -> str:
    """A new file of the links of sites a, b and c, of which a and c hardly reach each other, so that they meet over b.

    `rtt_s`: round trips by the sites' numbers.
    """
    from geocomm.core.link_table import Links, table_of

    links = Links(("a", "b", "c"), table_of(3, lambda src, dst: 1e9 if 1 in (src, dst) else 1e6), table_of(3, rtt_s))
    assert links.relays() == [("a", "b", "c"), ("c", "b", "a")]
    path = folder / "links.json"
    path.write_text(json.dumps(links.to_dict()), encoding="utf-8")
    return str(path)


def links_of_two_regions(
    folder: Path, *, near_bps: float = 1e10, far_bps: float = 1e8, near_s: float = 0.0002, far_s: float = 0.002
) -> str:
    """A new file of the links of sites a, b, c and d; the first two are a region, and so are the last.

    near_s, far_s: round trips in seconds.
    """
    from geocomm.core.link_table import Links, table_of

    def is_near(src: int, dst: int) -> bool:
        return src // 2 == dst // 2

    links = Links(
        tuple("abcd"),
        table_of(4, lambda src, dst: near_bps if is_near(src, dst) else far_bps),
        table_of(4, lambda src, dst: near_s if is_near(src, dst) else far_s),
        regions=("east", "east", "west", "west"),
    )
    path = folder / "links.json"
    path.write_text(json.dumps(links.to_dict()), encoding="utf-8")
    return str(path)


def hash_of(*tensors: torch.Tensor) -> str:
    """Of all their bits."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def relayed_bytes() -> int:
    """That this rank has passed on in the last group that it made."""
    import geocomm

    return geocomm.stats()["groups"][-1]["relayed_bytes"]


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """What a program that starts again has of a state that was saved."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def serve(pipe: Connection) -> None:
    """A rank process: runs what comes until the pipe closes."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # The key is asked for where a tensor goes from one process to another.
    current_process().authkey, sys.path[:] = pipe.recv()
    torch.set_num_threads(1)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            sys.exit(0)
        try:
            outcome = Outcome(value=function(*arguments))
        except Exception as error:
            outcome = Outcome(failure=failure_of(error))
        pipe.send(outcome)


def failure_of(error: BaseException) -> Failure:
    """The parts of an exception that tests look at."""
    names = ("code", "peer", "op", "seq")
    return Failure(
        kinds=[kind.__name__ for kind in type(error).__mro__],
        message=str(error),
        traceback="".join(traceback.format_exception(error)),
        attributes={name: getattr(error, name) for name in names if hasattr(error, name)},
    )


def _init(path: str, arguments: dict[str, Any]) -> None:
    defaults = {"backend": "geocomm", "timeout": timedelta(seconds=30)}
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(**(defaults | arguments), store=dist.FileStore(path), rank=rank, world_size=size)


def _set_timeout(timeout_s: float) -> None:
    group = dist.group.WORLD
    assert group is not None
    group.set_timeout(timedelta(seconds=timeout_s))


def meet(name: str, ranks: int) -> None:
    """On a rank: return once so many ranks have called it by this name, which is new. No operation of their group."""
    store = dist.distributed_c10d._get_default_store()
    store.add(name, 1)
    while store.add(name, 0) < ranks:
        time.sleep(0.01)


def _destroy() -> None:
    dist.destroy_process_group()
