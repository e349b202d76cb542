"""What the ranks of a fault test run: verified all-reduces until they are told to stop, with figures of every round.

    fault_ranks.py FOLDER

Everything passes through FOLDER: the store, `rank-<n>.jsonl` with one line per round, the files `stop`, `survivors`
(JSON list of ranks) and `abort` that a test makes. The keys of the sites are in FOLDER/keys, if there are any.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
RANK = int(os.environ["NODE_RANK"])
KEYS = FOLDER / "keys" / os.environ["GEOCOMM_SITE"]
# Before torch loads the backend.
os.environ |= {"GEOCOMM_KEYS": str(KEYS), "GEOCOMM_SECURITY": "required"} if KEYS.exists() else {}
os.environ.setdefault("GEOCOMM_SECURITY", "insecure")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import geocomm  # noqa: E402

ELEMENTS = int(os.environ.get("FAULT_ELEMENTS", "200000"))
OPERATION_TIMEOUT = timedelta(minutes=10)
"""Longer than any fault: what ends an operation is the link's deadline, or nothing."""


class Log:
    """Lines of this rank; the test reads along."""

    def __init__(self) -> None:
        self._file = (FOLDER / f"rank-{RANK}.jsonl").open("w", encoding="utf-8", buffering=1)

    def write(self, **fields: Any) -> None:
        fields |= {"time": time.monotonic(), "rss_kib": rss_kib(), "fds": len(os.listdir("/proc/self/fd"))}
        self._file.write(json.dumps(fields) + "\n")


def rss_kib() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def contribution(rank: int, number: int) -> torch.Tensor:
    """What a rank puts into a round: whole numbers, so that float32 sums are exact in any order."""
    return (torch.arange(ELEMENTS) * (2 * rank + 1) + 7919 * number).remainder(1021).to(torch.float32)


def join(name: str, ranks: list[int]) -> None:
    """A process group of these ranks."""
    store = dist.FileStore(str(FOLDER / name), len(ranks))
    dist.init_process_group(
        "geocomm", store=store, rank=ranks.index(RANK), world_size=len(ranks), timeout=OPERATION_TIMEOUT
    )


def sum_up(values: torch.Tensor) -> None:
    """All-reduce, in place."""
    dist.all_reduce(values)


@functools.cache
def ddp_model() -> DistributedDataParallel:
    """Of the first group: the gradient of its weight is its input."""
    return DistributedDataParallel(torch.nn.Linear(ELEMENTS, 1, bias=False))


def sum_up_by_ddp(values: torch.Tensor) -> None:
    """The same by a backward of DDP, which waits for a Future of its bucket inside of torch."""
    model = ddp_model()
    model.zero_grad()
    model(values).sum().backward()
    values.copy_(model.module.weight.grad[0] * dist.get_world_size())


SUM_UP = {"call": sum_up, "ddp": sum_up_by_ddp}[os.environ.get("FAULT_SUMS", "call")]


def reduce_once(ranks: list[int], number: int, digest: int) -> tuple[bool, int]:
    """One verified all-reduce: whether any rank wants to stop, and the digest of all results so far."""
    values = contribution(RANK, number)
    values[0] = float((FOLDER / "stop").exists())
    SUM_UP(values)
    expected = torch.stack([contribution(rank, number) for rank in ranks]).sum(0)
    if not torch.equal(values[1:], expected[1:]):
        wrong = int((values[1:] != expected[1:]).sum())
        raise AssertionError(f"round {number}: {wrong} of {ELEMENTS} elements are wrong")
    return values[0].item() > 0, zlib.crc32(values.numpy(), digest)


def reduce_until_told(log: Log, ranks: list[int]) -> None:
    """Rounds until a rank sees the file `stop`; the counters of the links with the last."""
    stop, number, digest = False, 0, 0
    while not stop:
        began = time.monotonic()
        stop, digest = reduce_once(ranks, number, digest)
        took = time.monotonic() - began
        log.write(round=number, took=took, exposed=geocomm.stats()["exposed_seconds"], digest=digest)
        number += 1
    peers = geocomm.stats()["peers"]
    log.write(
        **{name: sum(peer[name] for peer in peers) for name in ("resumes", "resent_segments", "outages", "outage_us")}
    )


def abort_when_told() -> None:
    """In a thread: the file `abort` makes an abort of the group that is in an operation."""
    while not (FOLDER / "abort").exists():
        time.sleep(0.02)
    dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).abort()


def named_ranks(ranks: list[int]) -> list[int]:
    """The ranks that a test made survivors of, as soon as it says so."""
    path = FOLDER / "survivors"
    while not path.exists():
        time.sleep(0.02)
    return [rank for rank in json.loads(path.read_text(encoding="utf-8")) if rank in ranks]


def main() -> None:
    """Rounds; and after a failure a new group in this process, of those that live."""
    torch.set_num_threads(1)
    ranks = list(range(int(os.environ["NNODES"])))
    log = Log()
    log.write(pid=os.getpid())
    threading.Thread(target=abort_when_told, daemon=True).start()
    join("store", ranks)
    try:
        reduce_until_told(log, ranks)
    except (RuntimeError, AssertionError) as error:
        if isinstance(error, AssertionError):
            raise
        kinds = [kind.__name__ for kind in type(error).__mro__]
        log.write(kinds=kinds, message=str(error), peer=getattr(error, "peer", ""))
        began = time.monotonic()
        dist.destroy_process_group()
        log.write(destroyed_after=time.monotonic() - began)
        survivors = named_ranks(ranks)
        join("store-again", survivors)
        reduce_until_told(log, survivors)
    began = time.monotonic()
    dist.destroy_process_group()
    log.write(destroyed_after=time.monotonic() - began)


if __name__ == "__main__":
    main()
