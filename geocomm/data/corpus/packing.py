"""Packed sequences of one corpus, held-out ones apart, in a seeded order that all ranks share.

The order is a function of (seed, epoch), and of the site in an elastic run: a run's whole position is the number of
sequences that all ranks together have consumed, whatever the number of ranks.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from geocomm.core.bad_input import BadInput
from geocomm.core.units import count_text
from geocomm.data.corpus.token_store import TokenArray


class Sequences(ABC):
    """Sequences of token ids, held-out ones apart, in an order that all ranks share."""

    fingerprint: str
    """Equal for the same sequences in the same order."""
    token_count: int
    train_count: int
    """Sequences of one pass."""

    def __init__(self, sequence_length: int) -> None:
        self.sequence_length = sequence_length

    @property
    @abstractmethod
    def held_out_count(self) -> int:
        """How many are never trained on."""

    @abstractmethod
    def held_out(self, limit: int) -> NDArray[np.int64]:
        """Numbers of the first `limit` of them."""

    @abstractmethod
    def sequence_number(self, position: int) -> int:
        """Which sequence is the `position`-th (from 0) of the run: each pass takes every one once, in a new order."""

    @abstractmethod
    def rows(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """Token ids of the given sequences, one row each."""

    def position(self, consumed: int) -> int:
        """Where this rank's site is in its line of sequences, once all ranks together have consumed so many."""
        return consumed

    def state(self, consumed: int) -> dict[str, Any]:
        """What a checkpoint keeps for sequences that go on from there, as plain values; empty: `consumed` says all."""
        return {}

    def require(self, global_batch: int, held_out: bool) -> None:
        """Raise BadInput unless there are sequences for one optimizer step and, if `held_out`, for an evaluation."""
        if self.train_count < global_batch:
            raise BadInput(
                f"the corpus has {count_text(self.token_count, 'token')}, which pack into {self.train_count} training "
                f"sequences of {self.sequence_length}, but one optimizer step takes {global_batch}: give more text or "
                f"lower data.sequence_length, training.micro_batch_size or training.gradient_accumulation_steps"
            )
        if held_out and self.held_out_count == 0:
            raise BadInput(
                f"no held-out sequence for evaluation among {self.train_count}: raise data.held_out_fraction, "
                f"or set evaluation.at_end=false and evaluation.every_steps=0"
            )

    def micro_batch(self, consumed: int, micro_step: int, rank: int, world_size: int, size: int) -> NDArray[np.int64]:
        """The rows of `rank` for forward pass `micro_step` of the step that starts at position `consumed`."""
        start = consumed + (micro_step * world_size + rank) * size
        return self.rows([self.sequence_number(position) for position in range(start, start + size)])

    def held_out_share(self, rank: int, world_size: int, limit: int) -> list[int]:
        """Numbers of the held-out sequences that `rank` evaluates out of the first `limit`; disjoint over ranks."""
        return [int(n) for n in self.held_out(limit)[rank::world_size]]


def named_seed(seed: int, order: str) -> int:
    """A seed for another order of the same sequences, by its name; "": the seed itself."""
    named = hashlib.sha256(f"{seed} {order}".encode()).digest()[:8]
    return int.from_bytes(named, "little") if order else seed


def held_out_every(fraction: float) -> int:
    """Every so many sequences one is held out (1 / `fraction`, rounded); 0: none."""
    return max(2, round(1 / fraction)) if fraction > 0 else 0


class PackedSequences(Sequences):
    """A token array cut into sequences of equal length; the rest at the end is dropped."""

    def __init__(
        self, array: TokenArray, sequence_length: int, held_out_fraction: float, seed: int, order: str = ""
    ) -> None:
        """Every n-th sequence (n = 1 / `held_out_fraction`, rounded) is held out; a fraction of 0 holds out none.

        order: names another order of the same sequences.
        """
        super().__init__(sequence_length)
        self._tokens = array.tokens
        self._seed = named_seed(seed, order)
        self.token_count = len(array.tokens)
        count = len(array.tokens) // sequence_length
        numbers = np.arange(count, dtype=np.int64)
        if every := held_out_every(held_out_fraction):
            is_held_out = numbers % every == every - 1
        else:
            is_held_out = np.zeros(count, dtype=bool)
        self.train_numbers: NDArray[np.int64] = numbers[~is_held_out]
        self.train_count = len(self.train_numbers)
        self.held_out_numbers: NDArray[np.int64] = numbers[is_held_out]
        self._epoch = -1
        self._order: NDArray[np.int64] = numbers[:0]
        text = f"{array.sha256} {sequence_length} {held_out_fraction} {seed}"
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()

    @property
    @override
    def held_out_count(self) -> int:
        return len(self.held_out_numbers)

    @override
    def held_out(self, limit: int) -> NDArray[np.int64]:
        return self.held_out_numbers[:limit]

    @override
    def sequence_number(self, position: int) -> int:
        epoch, index = divmod(position, len(self.train_numbers))
        if epoch != self._epoch:
            self._order = self._shuffled(epoch)
            self._epoch = epoch
        return int(self._order[index])

    def _shuffled(self, epoch: int) -> NDArray[np.int64]:
        # Sorting raw Philox output, whose stream numpy guarantees, keeps the order equal between numpy versions.
        keys = np.random.Philox(key=[self._seed, epoch]).random_raw(len(self.train_numbers))
        return self.train_numbers[np.argsort(keys, kind="stable")]

    @override
    def rows(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        length = self.sequence_length
        return np.stack([self._tokens[n * length : (n + 1) * length].astype(np.int64) for n in numbers])
