"""The store through which the ranks of a Gloo group find each other, with few round trips to the job's store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist


class Rendezvous(dist.Store):
    """Reads what all ranks have written at once.

    Gloo writes the address of each rank under its number, and then waits for them and reads them one by one: two round
    trips to the store each. The store of the job may be at another site, 300 ms away.
    """

    def __init__(self, store: dist.Store, ranks: int) -> None:
        """store: of one group alone, of so many ranks."""
        super().__init__()
        self._store: Any = store
        self._ranks = ranks
        self._read: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        """Write."""
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """What was written; waits for it."""
        if key not in self._read:
            self.wait([key])
        return self._read[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Until all keys are written, and with each those of the other ranks."""
        wanted = [key for one in keys for key in self._of_all_ranks(one) if key not in self._read]
        if wanted:
            self._store.wait(wanted, *(() if timeout is None else (timeout,)))
            self._read |= zip(wanted, self._store.multi_get(wanted), strict=True)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are written."""
        return self._store.check(list(keys))

    def add(self, key: str, value: int) -> int:
        """Add to a number; the sum."""
        return self._store.add(key, value)

    def delete_key(self, key: str) -> bool:
        """Whether there was one."""
        return self._store.delete_key(key)

    def _of_all_ranks(self, key: str) -> list[str]:
        """The keys like this one of all ranks, if it ends with the number of one."""
        head, _, rank = key.rpartition("/")
        return [f"{head}/{other}" for other in range(self._ranks)] if rank.isdigit() else [key]
