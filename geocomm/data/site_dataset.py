"""A data set of a catalog for a training loop of one's own. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info
from typing_extensions import override

from geocomm.core.bad_input import BadInput
from geocomm.core.errors import InvalidArgumentError
from geocomm.core.site import UNNAMED_SITE, site_name
from geocomm.core.typed_torch import from_numpy
from geocomm.data.shard_sequences import Reading, SetName, ShardSequences


class SiteDataset(IterableDataset[torch.Tensor]):
    """This rank's batches of a data set, without end: each pass over the data in a new order.

    All ranks of the default process group, or this process alone without one, read it together: no sequence twice, none
    missed, whatever their number. Iterating goes on where it stood. `state_dict` and `load_state_dict` are those of
    torchdata's `StatefulDataLoader`; a state fits any number of ranks, and may be of an older version of the data set,
    whose sequences are not read again in this pass.
    """

    def __init__(
        self, name: str, *, batch_size: int, sequence_length: int, seed: int = 0, held_out_fraction: float = 0.0
    ) -> None:
        """Open the data set, at its beginning.

        Args:
            name: `FOLDER@17`, the catalog's folder and the version; the newest without `@`.
            batch_size: Sequences of this rank in a batch.
            sequence_length: Tokens of a sequence.
            seed: Of the order.
            held_out_fraction: Every n-th sequence of a shard (1 / fraction, rounded) is never read.

        Raises:
            InvalidArgumentError: There is no such version, it cannot be read, or its sequences do not fill a batch.
        """
        super().__init__()
        if batch_size < 1 or sequence_length < 1 or not 0 <= held_out_fraction < 1 or not 0 <= seed < 1 << 63:
            raise InvalidArgumentError(
                f"SiteDataset: batch_size {batch_size} and sequence_length {sequence_length} must be 1 or more, "
                f"held_out_fraction {held_out_fraction} and seed {seed} at least 0, the first below 1"
            )
        self._batch_size = batch_size
        self._position = 0
        site = site_name() or UNNAMED_SITE
        try:
            self._data = ShardSequences(SetName.parse(name), site, sequence_length, held_out_fraction, seed)
        except BadInput as error:
            raise InvalidArgumentError(f"SiteDataset: {error}") from None
        self._given = {"sequence_length": sequence_length, "held_out_fraction": held_out_fraction, "seed": seed}
        ranks = _place()[1]
        if self._data.train_count < batch_size * ranks:
            raise InvalidArgumentError(
                f"SiteDataset: {name} has {self._data.train_count} sequences of {sequence_length} tokens for this "
                f"site, and a batch of {ranks} ranks takes {batch_size * ranks}"
            )

    @property
    def batch_tokens(self) -> int:
        """Tokens of a batch of all ranks together."""
        return self._batch_size * self._data.sequence_length * _place()[1]

    @override
    def __iter__(self) -> Iterator[torch.Tensor]:
        """Token ids: int64, batch_size x sequence_length. Raises InvalidArgumentError in a worker process."""
        if get_worker_info() is not None:
            raise InvalidArgumentError(
                "SiteDataset: num_workers must be 0. Workers would read the same rows; a row is a copy out of a mapped "
                "file, and needs none"
            )
        while True:
            rank, ranks = _place()
            rows = self._data.micro_batch(self._position, 0, rank, ranks, self._batch_size)
            self._position += self._batch_size * ranks
            yield from_numpy(rows)

    def state_dict(self) -> dict[str, Any]:
        """Where all ranks together are: plain values."""
        return {"position": self._position, "readings": [list(one) for one in self._data.readings], **self._given}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken.

        Args:
            state: From `state_dict`, of the same data set.

        Raises:
            InvalidArgumentError: The state is of other data, a newer version, or another sequence length.
        """
        for name, own in self._given.items():
            if state[name] != own:
                raise InvalidArgumentError(f"SiteDataset: the state has {name} {state[name]}, and this one {own}")
        try:
            readings = [Reading(*one) for one in state["readings"]]
            self._data = self._data.renewed(readings, state["position"])
        except BadInput as error:
            raise InvalidArgumentError(f"SiteDataset: {error}") from None
        self._position = state["position"]


def _place() -> tuple[int, int]:
    """Rank and number of ranks."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
