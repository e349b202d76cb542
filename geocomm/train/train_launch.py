"""Which rank this process is, and the exchange between all ranks that comes before any process group.

Works under `python -m torch.distributed.run`, the `deepspeed` launcher, `geocomm wan` (one process per site: NNODES and
NODE_RANK without RANK) and without any launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from geocomm.local_ranks import free_port
from geocomm.options import site_name
from geocomm.train.train_errors import BadInput

if TYPE_CHECKING:
    from torch.distributed import Store

UNNAMED_SITE = "local"
_PREFIX = "geocomm_train"


@dataclass(frozen=True)
class Place:
    """This process among all ranks. `site` is GEOCOMM_SITE, or `UNNAMED_SITE`."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    site: str

    def describe(self) -> str:
        """`rank 1 (site b)`, for messages."""
        return f"rank {self.rank} (site {self.site})"


def find_place(environ: MutableMapping[str, str]) -> Place:
    """The place that the launcher's variables in `environ` give; fills in what `env://` needs where a launcher left it.

    Raises BadInput if the variables contradict each other.
    """
    if "RANK" not in environ and "NNODES" in environ and "NODE_RANK" in environ:
        environ["RANK"], environ["WORLD_SIZE"] = environ["NODE_RANK"], environ["NNODES"]
        environ["LOCAL_RANK"], environ["LOCAL_WORLD_SIZE"] = "0", "1"
    elif "RANK" not in environ and "WORLD_SIZE" not in environ:
        environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    values = {}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        try:
            values[name] = int(environ[name])
        except KeyError:
            raise BadInput(f"the launcher set RANK or WORLD_SIZE but not {name}; use torch.distributed.run") from None
        except ValueError:
            raise BadInput(f"{name} is {environ[name]!r}, not a number") from None
    if not 0 <= values["RANK"] < values["WORLD_SIZE"]:
        raise BadInput(f"RANK {values['RANK']} is outside of WORLD_SIZE {values['WORLD_SIZE']}")
    if values["WORLD_SIZE"] > 1:
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if name not in environ:
                raise BadInput(f"{name} is not set; it says where rank 0 listens")
    return Place(
        rank=values["RANK"],
        world_size=values["WORLD_SIZE"],
        local_rank=values["LOCAL_RANK"],
        local_world_size=int(environ.get("LOCAL_WORLD_SIZE") or environ.get("LOCAL_SIZE") or "1"),
        site=site_name(environ) or UNNAMED_SITE,
    )


class Rendezvous:
    """The key-value store of the job, used before a process group exists.

    Keep it until the process group is initialized: rank 0 may be serving the store.
    """

    def __init__(self, place: Place, timeout_seconds: float) -> None:
        """Connect to the store; waits for rank 0 up to `timeout_seconds`, then raises BadInput."""
        import torch.distributed as dist

        self._place = place
        self._store: Store | None = None
        if place.world_size == 1:
            return
        timeout = timedelta(seconds=timeout_seconds)
        try:
            store, _, _ = next(dist.rendezvous("env://", timeout=timeout))
        except (dist.DistError, ValueError, RuntimeError) as error:
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise BadInput(
                f"{place.describe()} found no rank 0 at {address} (MASTER_ADDR, MASTER_PORT): {_first_line(error)}"
            ) from None
        store.set_timeout(timeout)
        self._store = store

    def exchange(self, record: dict[str, Any], name: str = "record") -> list[dict[str, Any]]:
        """The JSON records of all ranks, by rank; each exchange has a name of its own.

        Raises BadInput naming the ranks that did not come in time.
        """
        if self._store is None:
            return [record]
        place = self._place
        self._store.set(f"{_PREFIX}/{name}/{place.rank}", json.dumps(record))
        records = []
        for rank in range(place.world_size):
            try:
                records.append(json.loads(self._store.get(f"{_PREFIX}/{name}/{rank}")))
            except RuntimeError as error:
                raise BadInput(
                    f"{place.describe()} waited in vain for rank {rank} to start: {_first_line(error)}"
                ) from None
        return records

    def linger(self, seconds: float = 10.0) -> None:
        """Before an early exit: let the others read the store that this process may be serving."""
        if self._store is None:
            return
        with contextlib.suppress(RuntimeError):  # rank 0 has left already: it saw everyone
            arrived = self._store.add(f"{_PREFIX}/leaving", 1)
            end = time.monotonic() + seconds
            while self._place.rank == 0 and arrived < self._place.world_size and time.monotonic() < end:
                time.sleep(0.02)
                arrived = self._store.add(f"{_PREFIX}/leaving", 0)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
