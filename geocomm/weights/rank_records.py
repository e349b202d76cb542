"""What the ranks of a publisher tell each other: through the store of the job, so that no collective is called beside
those of the training."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch.distributed as dist

from geocomm.core.errors import DataError
from geocomm.core.message_log import logger
from geocomm.core.patience import Waiting
from geocomm.core.typed_torch import default_store

_LOOK_S = 0.02
_LIMIT_S = 600.0
_instances = itertools.count()
"""All ranks make their publishers in one order."""


class RankRecords:
    """Texts of ranks, by what they are about. One rank alone has a store of its own."""

    def __init__(self, ranks: list[int], own: int) -> None:
        """ranks: all, in order; the first one leads."""
        self.ranks, self.own = ranks, own
        is_alone = len(ranks) == 1
        self._store: Any = dist.HashStore() if is_alone else default_store()
        self._prefix = f"geocomm-weights/{0 if is_alone else next(_instances)}"

    @property
    def leads(self) -> bool:
        return self.own == self.ranks[0]

    def tell(self, about: str, text: str) -> None:
        """Say something as this rank."""
        self._store.set(self._key(about, self.own), text)

    def hear_all(self, about: str, stopped: Callable[[], bool]) -> list[str]:
        """What each rank has told, in order, for the one who leads; then it is forgotten. DataError: one does not."""
        texts = list[str]()
        for rank in self.ranks:
            texts.append(self._hear(about, rank, stopped))
            self._forget(about, rank)
        return texts

    def hear_leader(self, about: str, stopped: Callable[[], bool]) -> str:
        """What the first rank has told. DataError: it does not."""
        return self._hear(about, self.ranks[0], stopped)

    def forget(self, about: str) -> None:
        """What this rank has told is not needed any more."""
        self._forget(about, self.own)

    def _forget(self, about: str, rank: int) -> None:
        with suppress(RuntimeError):  # not every store can
            self._store.delete_key(self._key(about, rank))

    def _hear(self, about: str, rank: int, stopped: Callable[[], bool]) -> str:
        key, waiting, until = self._key(about, rank), Waiting(logger().warning), time.monotonic() + _LIMIT_S
        # No get(), which would hold up what the job itself asks of the store.
        while not self._store.check([key]):
            if stopped() or time.monotonic() > until:
                raise DataError(f"weights: rank {rank} has not told its {about.partition('/')[0]}")
            waiting.tell(lambda: f"rank {rank}, to publish its part of the weights ({about})")
            time.sleep(_LOOK_S)
        return self._store.get(key).decode()

    def _key(self, about: str, rank: int) -> str:
        return f"{self._prefix}/{about}/{rank}"
