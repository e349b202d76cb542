"""The exchange between all ranks that comes before any process group."""

from __future__ import annotations

import contextlib
import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from geocomm.core.bad_input import BadInput
from geocomm.core.place import Place
from geocomm.group.membership.rank_record import ranks_text
from geocomm.group.membership.roll_call import Absent, exchange

if TYPE_CHECKING:
    from torch.distributed import Store

_PREFIX = "geocomm_train"
_LINGER_S = 10.0


class Rendezvous:
    """The key-value store of the job, used before a process group exists.

    Keep it until the process group is initialized: rank 0 may be serving the store.
    """

    def __init__(self, place: Place, timeout_seconds: float) -> None:
        """Connect to the store; waits for rank 0 up to `timeout_seconds`, then raises BadInput."""
        import torch.distributed as dist

        self._place = place
        self._store: Store | None = None
        self._timeout = timedelta(seconds=timeout_seconds)
        if place.world_size == 1:
            return
        try:
            store, _, _ = next(cast(Any, dist).rendezvous("env://", timeout=self._timeout))
        except (dist.DistError, ValueError, RuntimeError) as error:
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise BadInput(
                f"{place.describe()} found no rank 0 at {address} (MASTER_ADDR, MASTER_PORT): {_first_line(error)}"
            ) from None
        store.set_timeout(self._timeout)
        self._store = store

    def exchange(self, record: dict[str, Any], name: str = "record") -> list[dict[str, Any]]:
        """The JSON records of all ranks, by rank; each exchange has a name of its own.

        Raises BadInput naming the ranks that did not come in time.
        """
        if self._store is None:
            return [record]
        place = self._place
        try:
            return exchange(self._store, f"{_PREFIX}/{name}", place.rank, place.world_size, record, self._timeout)
        except Absent as absent:
            raise BadInput(f"{place.describe()} waited in vain for {ranks_text(absent.ranks)} to start") from None
        except RuntimeError as error:
            raise BadInput(f"{place.describe()} lost the job's store: {_first_line(error)}") from None

    def linger(self) -> None:
        """Before an early exit: let the others read the store that this process may be serving."""
        if self._store is None:
            return
        with contextlib.suppress(RuntimeError):  # rank 0 has left already: it saw everyone
            arrived = self._store.add(f"{_PREFIX}/leaving", 1)
            end = time.monotonic() + _LINGER_S
            while self._place.rank == 0 and arrived < self._place.world_size and time.monotonic() < end:
                time.sleep(0.02)
                arrived = self._store.add(f"{_PREFIX}/leaving", 0)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
