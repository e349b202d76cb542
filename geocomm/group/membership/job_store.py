"""The exchange between all ranks that comes before any process group."""

from __future__ import annotations

import contextlib
import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from geocomm.core.bad_input import BadInput
from geocomm.core.patience import pauses
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
        """Before an exit: wait for the others to come to theirs.

        They may read the store that this process serves, or be in the last collective: who closes its connections of
        Gloo first may fail another there (pytorch/gloo issue 155).
        """
        if self._store is None:
            return
        ranks, is_first = self._place.world_size, self._place.rank == 0
        with contextlib.suppress(RuntimeError):  # the store is gone, and with it who served it
            _count(self._store, "leaving", 1, ranks)
            _count(self._store, "gone", int(not is_first), ranks - 1 if is_first else 0)  # rank 0 may serve the store


def _count(store: Store, name: str, own: int, least: int) -> None:
    """Add to a number of all ranks, and wait for a while until it is `least`."""
    end, waits = time.monotonic() + _LINGER_S, pauses(0.01, 0.2)
    while store.add(f"{_PREFIX}/{name}", own) < least and time.monotonic() < end:
        own = 0
        time.sleep(next(waits))


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
