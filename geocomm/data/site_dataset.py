"""A data set of a catalog for a training loop of one's own. Imports torch."""

from __future__ import annotations

import inspect
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol, cast, runtime_checkable

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info
from typing_extensions import override

from geocomm.core.bad_input import BadInput
from geocomm.core.errors import DataError, GeocommError, InvalidArgumentError
from geocomm.core.site import UNNAMED_SITE, site_name
from geocomm.core.typed_torch import all_gather_object, from_numpy
from geocomm.core.units import count_text
from geocomm.data.deal_sequences import DealtSequences
from geocomm.data.fixed_deals import ReadSoFar
from geocomm.data.shard_sequences import SetName, ShardSequences
from geocomm.data.site_deals import SiteDeals, SiteLeft


@runtime_checkable
class ReadsDeals(Protocol):
    """What `geocomm.local_steps` returns."""

    @property
    def deals(self) -> SiteDeals | None:
        """None: no data is dealt."""
        ...


class SiteDataset(IterableDataset[torch.Tensor]):
    """This rank's batches of a data set, without end: each pass over the data in a new order.

    All ranks of the default process group, or this process alone without one, read it together: in one pass no sequence
    twice, and none missed, whatever their number. Each site (GEOCOMM_SITE) is dealt shards that it may read, by the
    rule of elastic runs, and its ranks share them; sites may have batches of unequal size. Iterating goes on where it
    stood.

    With a `batch_size` it is iterated over itself, or as `DataLoader(data, batch_size=None)`. Without one its items are
    sequences, of which `DataLoader(data, batch_size=8)` makes batches; all ranks must have loaders of the same size.

    `state_dict` and `load_state_dict` are those of torchdata's `StatefulDataLoader`. A state is of all sites, so that a
    job of other sites, or of other numbers of ranks, reads what is left; and it may be of an older version. Take it
    after the same batch at all ranks. The first batch is collective over all ranks, and so is `batch_tokens` before it.

    In an elastic run whose leader deals data, the batches are those that were dealt to this site. A site that comes
    back reads on where the journal says, whatever `load_state_dict` is given. Where nothing is left, iterating waits
    for the next deal, and says so; meanwhile the site takes part in rounds. It ends when the site has left the run.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | ReadsDeals,
        *,
        batch_size: int | None = None,
        sequence_length: int | None = None,
        seed: int = 0,
        held_out_fraction: float = 0.0,
    ) -> None:
        """Open the data set, at its beginning, or where the site is in the run's.

        Args:
            source: `FOLDER@17`, the catalog's folder and the version; the newest without `@`. Or what `local_steps` has
                returned in an elastic run that was started with `--data`: the three others are the run's then.
            batch_size: Sequences of this rank in a batch; None: a `DataLoader` makes the batches.
            sequence_length: Tokens of a sequence.
            seed: Of the order.
            held_out_fraction: Every n-th sequence of a shard (1 / fraction, rounded) is never read.

        Raises:
            InvalidArgumentError: There is no such version, it cannot be read, its sequences do not fill a batch, or the
                run deals no data.

        Example:
            A site of an elastic run:

                data = geocomm.SiteDataset(outer, batch_size=8)
                for rows in data:
                    outer.count_tokens(data.batch_tokens)
                    ...
        """
        super().__init__()
        for name, number in (("batch_size", batch_size), ("sequence_length", sequence_length), ("seed", seed)):
            if number is not None and not isinstance(cast("object", number), int):
                raise InvalidArgumentError(f"SiteDataset: {name} must be a whole number, and it is {number!r}")
        if not all(one is None or one > 0 for one in (batch_size, sequence_length)) or not (
            0 <= held_out_fraction < 1 and 0 <= seed < 1 << 63
        ):
            raise InvalidArgumentError(
                f"SiteDataset: batch_size {batch_size} and sequence_length {sequence_length} must be 1 or more, "
                f"held_out_fraction {held_out_fraction} and seed {seed} at least 0, the first below 1"
            )
        self._batch_size = batch_size or 1
        self._of_loader = batch_size is None
        """Items are sequences, of which a loader makes batches."""
        self._position = 0
        """The next sequence of this site's line."""
        self._batches = 0
        """That each rank has read, in this job and before."""
        self._before: Mapping[str, Any] = {}
        self._world, self._readers = (-1, 0), (0, 1)
        self._given = {"sequence_length": sequence_length, "held_out_fraction": held_out_fraction, "seed": seed}
        self._site = site = site_name() or UNNAMED_SITE
        with _told_as(InvalidArgumentError):
            if isinstance(source, str | os.PathLike):
                if sequence_length is None:
                    raise BadInput(f"{os.fspath(source)} needs a sequence_length")
                name = SetName.parse(os.fspath(source))
                self._data = ShardSequences(name, site, sequence_length, held_out_fraction, seed)
            elif isinstance(cast("object", source), ReadsDeals):
                self._data = self._dealt(source, site)
            else:
                raise BadInput(
                    f"it reads a data set of a catalog by its name, such as SiteDataset('/data/catalog/web@17', "
                    f"sequence_length=4096), or what geocomm.local_steps returns, and got a {type(source).__name__}; "
                    "geocomm data add makes a catalog of files"
                )
        if self._data.train_count < self._batch_size:
            raise InvalidArgumentError(
                f"SiteDataset: {self._data.url} has {count_text(self._data.train_count, 'sequence')} of "
                f"{self._data.sequence_length} "
                f"tokens for this site, and a batch takes {self._batch_size}"
            )

    def _dealt(self, outer: ReadsDeals, site: str) -> DealtSequences:
        if outer.deals is None:
            raise BadInput("the run deals no data: start its leader with --data, or name a catalog here")
        if self._given != {"sequence_length": None, "held_out_fraction": 0.0, "seed": 0}:
            raise BadInput("sequence_length, seed and held_out_fraction are the run's, which the leader was given")
        self._position = outer.deals.position
        return DealtSequences(outer.deals, site)

    @property
    def batch_tokens(self) -> int:
        """Tokens of a batch of all ranks of this site together: what `LocalSteps.count_tokens` takes.

        Raises InvalidArgumentError without a `batch_size`.
        """
        if self._of_loader:
            raise InvalidArgumentError(
                "SiteDataset: batch_tokens is not known where a DataLoader makes the batches: count rows.numel() for "
                "each rank of the site, or give SiteDataset the batch_size, and iterate over the data set itself"
            )
        return self._batch_size * self._data.sequence_length * self._among()[1]

    def _among(self) -> tuple[int, int]:
        """The place of this rank among those that read together, and their number. Collective where they are new."""
        world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        if isinstance(self._data, DealtSequences):
            return world
        if world != self._world:
            self._share(self._data, *world)
            self._world = world
        return self._readers

    def _share(self, data: ShardSequences, rank: int, ranks: int) -> None:
        before = self.state_dict()["read"]
        loaders = _batch_of_loader(inspect.currentframe()) if self._of_loader else None
        told = _of_all((self._site, self._batch_size, self._batches, data.version_text, self._given, loaders))
        for index, what in enumerate(("batches were read", "version", "settings", "batch_size of the DataLoader"), 2):
            if other := next((one for one in told if one[index] != told[0][index]), None):
                raise InvalidArgumentError(
                    f"SiteDataset: {what} at site {told[0][0]}: {told[0][index]}, at site {other[0]}: {other[index]}; "
                    "they must be equal"
                )
        batches: dict[str, int] = {}
        for site, size, *_ in told:
            if any(one[:2] != (site, size) for one in told if one[0] == site):
                raise InvalidArgumentError(f"SiteDataset: the ranks of site {site} have unequal batch_size")
            batches[site] = batches.get(site, 0) + size
        with _told_as(InvalidArgumentError):
            data.deal(batches, before, _of_all)
        own = [other for other in range(ranks) if told[other][0] == self._site]
        self._readers, self._position = (own.index(rank), len(own)), 0

    @override
    def __reduce__(self) -> str:
        """Raises InvalidArgumentError: a loader with workers that are not forked would send it to them."""
        raise _for_workers()

    @override
    def __iter__(self) -> Iterator[torch.Tensor]:
        """Token ids: int64, batch_size x sequence_length; without a batch_size, sequence_length.

        Raises InvalidArgumentError in a worker process, and in a loader that makes batches of batches, or shares them
        among ranks once more; DataError for a shard that is missing, truncated, or another one than was added.
        """
        if get_worker_info() is not None:
            raise _for_workers()
        if dist.is_initialized() and dist.get_world_size() > 1 and _is_dealt_out_again(inspect.currentframe()):
            raise InvalidArgumentError(
                "SiteDataset: each rank reads batches of its own, and accelerator.prepare around the data would deal "
                "them out once more: sequences that nobody trains on would count as read. Prepare the model and the "
                "optimizer alone, and iterate over the data set itself"
            )
        if not self._of_loader and (size := _batch_of_loader(inspect.currentframe())) is not None:
            raise InvalidArgumentError(
                f"SiteDataset: it has batches of {self._batch_size}, and the DataLoader would make batches of {size} "
                "of these: write DataLoader(data, batch_size=None), or SiteDataset(…) without batch_size"
            )
        while True:
            rank, ranks = self._among()
            try:
                with _told_as(DataError):
                    rows = self._data.micro_batch(self._position, 0, rank, ranks, self._batch_size)
            except SiteLeft:
                return
            self._position += self._batch_size * ranks
            self._batches += 1
            yield from_numpy(rows[0] if self._of_loader else rows)

    def state_dict(self) -> dict[str, Any]:
        """Where all ranks are: plain values, of a few bytes for each shard."""
        if isinstance(self._data, DealtSequences):
            return {"position": self._position, "dealt": True}
        steps = self._position // (self._batch_size * self._readers[1])
        read = self._before if self._world[0] < 0 else self._data.state_after(steps)
        return {"batches": self._batches, "read": dict(read), **self._given}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken.

        Args:
            state: From `state_dict`, of the same data set; at all ranks of one moment.

        Raises:
            InvalidArgumentError: The state is none, or of other data, a newer version, or another sequence length. The
                first batch raises what can be found in the catalog alone.
        """
        if not self._is_state(state):
            raise InvalidArgumentError(
                "SiteDataset: load_state_dict takes what state_dict() of a SiteDataset has returned, and this is not "
                "that; the state of a StatefulDataLoader goes to the loader's own load_state_dict"
            )
        if isinstance(self._data, DealtSequences) or state.get("dealt"):
            if not (isinstance(self._data, DealtSequences) and state.get("dealt")):
                raise InvalidArgumentError(
                    "SiteDataset: the data of one is dealt by a run's leader, and the other's is not"
                )
            return
        for name, own in self._given.items():
            if state[name] != own:
                raise InvalidArgumentError(f"SiteDataset: the state has {name} {state[name]}, and this one {own}")
        self._before, self._batches, self._world = state["read"], state["batches"], (-1, 0)

    def _is_state(self, state: object) -> bool:
        if not isinstance(state, Mapping):
            return False
        told = cast("Mapping[str, Any]", state)
        if told.get("dealt"):
            return True
        if not {"batches", "read", *self._given} <= told.keys() or not isinstance(told["batches"], int):
            return False
        try:
            return not told["read"] or bool(ReadSoFar.of_plain(told["read"]))
        except (AttributeError, KeyError, TypeError, ValueError):
            return False


@contextmanager
def _told_as(kind: type[GeocommError]) -> Generator[None]:
    """Programs catch GeocommError; BadInput is for commands."""
    try:
        yield
    except BadInput as error:
        raise kind(f"SiteDataset: {error}") from None


def _for_workers() -> InvalidArgumentError:
    return InvalidArgumentError(
        "SiteDataset: num_workers must be 0. Workers would read the same rows; a row is a copy out of a mapped file, "
        "and needs none"
    )


def _batch_of_loader(frame: FrameType | None) -> int | None:
    """How many items a DataLoader makes one batch of; None: it makes none, or there is no loader."""
    while frame is not None:
        if type(frame.f_locals.get("self")).__name__ == "_IterableDatasetFetcher":
            loader, asked = frame.f_locals["self"], frame.f_locals.get("possibly_batched_index")
            return len(asked) if loader.auto_collation and asked is not None else None
        frame = frame.f_back
    return None


def _is_dealt_out_again(frame: FrameType | None) -> bool:
    """Whether a loader of Accelerate asks for batches that it shares among ranks. It does not say so in another way."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "accelerate.data_loader":
            loader = type(frame.f_locals.get("self")).__name__
            if loader in ("DataLoaderDispatcher", "IterableDatasetShard"):
                return True
        frame = frame.f_back
    return False


def _of_all(own: Any) -> list[Any]:
    """What each rank has, by rank. Collective."""
    told = [own] * (dist.get_world_size() if dist.is_initialized() else 1)
    if len(told) > 1:
        all_gather_object(told, own)
    return told
