"""Publishes the weights of a model while it is trained: a copy in the loop, the rest in a thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
import torch.distributed as dist

from geocomm.core.bad_input import BadInput
from geocomm.core.errors import DataError, InvalidArgumentError
from geocomm.core.message_log import CalmLog, logger
from geocomm.core.patience import Waiting
from geocomm.core.site import SiteNameError, check_site_name
from geocomm.core.zero_cuts import whole_shape
from geocomm.security.key_folder import Keys
from geocomm.weights.publication import Publication
from geocomm.weights.rank_records import RankRecords
from geocomm.weights.rank_shares import local_part, own_share, publishing_ranks
from geocomm.weights.stream_version import MOST_READERS
from geocomm.weights.trained_tensors import Tensors, named_tensors, sent_shape
from geocomm.weights.weight_layout import PART_BYTES, pack_boxes

_LOOK_S = 0.2
_CALM_S = 60.0


class WeightPublisher:
    """Publishes weights as numbered versions of a stream, which `WeightReader` and `geocomm subscribe` follow.

    A version holds what changed since the one before, bit for bit; every `anchor_every` versions also all weights, for
    readers who begin. Where most weights changed a lot, it holds them all. An earlier version goes once two newer ones
    hold all weights. Of several ranks that train with FSDP2 or ZeRO 3 each publishes its own shards, so all of them
    construct a publisher and call `publish`. Plain tensors are taken for the same on all ranks: rank 0 publishes them.

    Args:
        place: The stream's folder, or its URL in a bucket (s3://, gs://, az://), whose keys are those of catalogs. One
            publisher writes to a stream; a second one is refused. One that starts again goes on with the next number.
        tensors: A module, or tensors by name: on any device, in any shape; DTensors that are sharded or replicated, and
            parameters of ZeRO 3.
        anchor_every: Versions from one that needs no base to the next.
        dtype: What tensors in floating point are published as; None: as they are. bfloat16 for a model whose weights
            are float32 in training and bfloat16 where they are used.
        keys: This site's folder of keys, which signs the versions; None: GEOCOMM_KEYS; without both nothing is signed.
        readers: The names of the keys that may have these weights; each relay between is one of them, too. None: all
            keys of the job. Others get the versions' files from a relay, with the names and shapes of the tensors,
            and no weights. Whoever has the folder, or the keys of the bucket, has the bytes. Needs `keys`.
        threads: The most CPU threads that pack; None: GEOCOMM_THREADS, else this process's share of the cores.

    Raises:
        InvalidArgumentError: A tensor cannot be published; the place or the keys cannot be used.
        DataError: The stream cannot be read.

    Example:
        Publish after each step:

            with geocomm.WeightPublisher("s3://bucket/run7", model, dtype=torch.bfloat16) as publisher:
                for step, batch in enumerate(batches):
                    train(batch)
                    publisher.publish(step=step)
    """

    def __init__(
        self,
        place: str | Path,
        tensors: Tensors,
        *,
        anchor_every: int = 64,
        dtype: torch.dtype | None = None,
        keys: str | Path | None = None,
        readers: Sequence[str] | None = None,
        threads: int | None = None,
    ) -> None:
        if anchor_every < 1:
            raise InvalidArgumentError(f"anchor_every is {anchor_every}; it must be 1 or more")
        self._source = tensors
        found = named_tensors(tensors)
        self._shapes = [sent_shape(name, tensor, dtype) for name, tensor in found.items()]
        self._publication: Publication | None = None
        self._writing: threading.Thread | None = None
        self._failure: Exception | None = None
        self._closed = False
        records = _records(found)
        if records is None:
            return
        self._shares = [own_share(at, name, found[name], leads=records.leads) for at, name in enumerate(found)]
        self._parts = pack_boxes(self._shapes, (box for share in self._shares for box in share.boxes), PART_BYTES)
        is_pinned = any(local_part(tensor).is_cuda for tensor in found.values())
        # Written once here: the first copy in the loop is as fast as the others.
        self._copies = [[torch.zeros_like(one.empty(), pin_memory=is_pinned) for one in self._parts] for _ in "ab"]
        try:
            signing = Keys.given(keys)
            self._publication = Publication(
                str(place),
                records,
                self._shapes,
                self._parts,
                anchor_every,
                signing,
                _checked_readers(readers, signing),
                threads,
                self._is_stopped,
            )
        except BadInput as error:
            raise InvalidArgumentError(f"weights: {error}") from None
        self._complain = CalmLog(logger().warning, _CALM_S)

    def publish(self, *, step: int | None = None, wait: bool = False) -> None:
        """Publish the weights as they are now.

        Copies them and returns; while the version before is still being written, it waits for that first. Where the
        place cannot be written, the log says so, and the version is left out: the next one has all that changed.

        Args:
            step: Of the training, for readers to see.
            wait: Return once the version is out, and raise where it is left out.

        Raises:
            InvalidArgumentError: The tensors are others than at first, or the publisher is closed.
            DataError: Another publisher writes to the stream; or with `wait`, the place cannot be written.
        """
        if self._publication is None:
            return
        if step is not None and not 0 <= step < 2**63:
            raise InvalidArgumentError(f"step is {step}; it must be 0 or more, and below 2**63")
        self._settle(self._publication)
        self._copy()
        self._failure = None
        # No daemon: the interpreter must not end below a thread that is inside of obstore.
        self._writing = threading.Thread(target=self._write, args=(self._publication, step), name="geocomm-weights")
        self._writing.start()
        if wait:
            self._settle(self._publication)
            if self._failure is not None:
                raise DataError(str(self._failure))

    def last(self) -> int:
        """The newest version that is out.

        Returns:
            Its number; 0: there is none. On ranks that publish nothing always 0.
        """
        return 0 if self._publication is None else self._publication.last

    def close(self) -> None:
        """Wait for what is being written, and end. Raises what `publish` does where another publisher writes."""
        if self._publication is None or self._closed:
            return
        try:
            self._settle(self._publication)
        finally:
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _copy(self) -> None:
        found = named_tensors(self._source)
        if [(one.name, one.shape) for one in self._shapes] != [(name, whole_shape(one)) for name, one in found.items()]:
            raise InvalidArgumentError("weights: the tensors are others than those that the publisher was made with")
        local = [local_part(tensor) for tensor in found.values()]
        for part, flat in zip(self._parts, self._copies[0], strict=True):
            for box, target in part.cut(flat):
                target.copy_(self._shares[box.tensor].view(box, local[box.tensor]), non_blocking=True)
        for device in {tensor.device for tensor in local if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()

    def _settle(self, publication: Publication) -> None:
        """Return once nothing is being written. Raises what ended the publisher."""
        if self._closed:
            raise InvalidArgumentError("weights: the publisher is closed")
        waiting = Waiting(logger().warning)
        while self._writing is not None and self._writing.is_alive():
            waiting.tell(lambda: f"version {publication.last + 1} to be written to {publication.url}")
            self._writing.join(_LOOK_S)
        if publication.refused:
            raise DataError(publication.refused)

    def _is_stopped(self) -> bool:
        return self._closed or not threading.main_thread().is_alive()

    def _write(self, publication: Publication, step: int | None) -> None:
        try:
            publication.put(step, *self._copies)
            self._copies.reverse()
        except Exception as error:  # the training goes on
            self._failure = error
            self._complain(f"weights: a version was left out: {' '.join(str(error).split()) or repr(error)}")


def _checked_readers(readers: Sequence[str] | None, keys: Keys | None) -> Sequence[str]:
    """Those that are named; none: all of the job. BadInput."""
    if readers is None:
        return ()
    if isinstance(readers, str) or not readers:
        raise BadInput(f"readers is {readers!r}; it must be a list of names of keys, or None for all of the job")
    if len(readers) > MOST_READERS:
        raise BadInput(f"readers has {len(readers)} names; {MOST_READERS} is the most that a version can say")
    if keys is None:
        raise BadInput("readers needs keys: set GEOCOMM_KEYS, or keys, to this site's folder of geocomm keys")
    try:
        return [check_site_name(name) for name in readers]
    except SiteNameError as error:
        raise BadInput(f"readers: {error}") from None


def _records(tensors: dict[str, torch.Tensor]) -> RankRecords | None:
    """None: this rank publishes nothing."""
    own = dist.get_rank() if dist.is_initialized() else 0
    ranks = publishing_ranks(tensors) or [0]
    return RankRecords(ranks, own) if own in ranks else None
