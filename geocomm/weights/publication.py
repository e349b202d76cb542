"""One version of a stream after the other: each rank packs and writes its parts, the first one the version."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from geocomm.codecs.tensor_codec import compress, make_delta
from geocomm.core.errors import DataError
from geocomm.core.message_log import logger
from geocomm.core.records import Record, Text, line_of
from geocomm.data.places import FilePlace, error_line, open_place, require_writable
from geocomm.security.key_folder import Keys
from geocomm.weights.rank_records import RankRecords
from geocomm.weights.stream_version import (
    FRAMES,
    NEWEST,
    Digest128,
    FrameFile,
    Hint,
    WeightVersion,
    frame_folder,
    frame_path,
    hint_of,
    layout_path,
    part_digest,
    read_version,
    version_numbers,
    version_path,
)
from geocomm.weights.weight_layout import TensorShape, WeightLayout, WeightPart, coded

_WRITES = 4
_NO_WIN = 4
"""A delta of more than this part of its raw bytes is compared with the whole part."""
_WORTH = 0.95


class _RankParts(Record):
    """The parts of a rank."""

    parts: tuple[WeightPart, ...]


class _RankFrames(Record):
    """What a rank has written of a version."""

    failure: Text = ""
    digests: tuple[Digest128, ...] = ()
    delta: tuple[FrameFile, ...] = ()
    whole: tuple[FrameFile, ...] = ()


class _OutVersion(Record):
    """What became of a version."""

    failure: Text = ""
    refused: bool = False
    number: int = 0
    is_anchor: bool = False


class Publication:
    """The versions that a publisher writes. Methods raise OSError, and its kind DataError."""

    def __init__(
        self,
        url: str,
        records: RankRecords,
        shapes: Sequence[TensorShape],
        parts: Sequence[WeightPart],
        anchor_every: int,
        keys: Keys | None,
        readers: Sequence[str],
        threads: int | None,
        stopped: Callable[[], bool],
    ) -> None:
        self.url, self.refused = url, ""
        self._records, self._stopped = records, stopped
        self._anchor_every, self._threads = anchor_every, threads
        self._keys, self._readers = keys, tuple(sorted(set(readers)))
        self._place: FilePlace = open_place(url, url)
        require_writable(self._place, "stream of weights")
        self._attempt = 0
        self._has_base, self._last_anchor = False, 0
        self._before: WeightVersion | None = None
        self._layout = b""
        self._tried: list[bytes] = []
        """What the place was told to take as its next version, and may have taken although it failed."""
        records.tell("parts", line_of(_RankParts(parts=tuple(parts))))
        if records.leads:
            records.tell("beginning", line_of(self._begun(shapes)))
        self.last = self._heard("beginning").number

    def put(self, step: int | None, values: Sequence[torch.Tensor], base: Sequence[torch.Tensor]) -> int:
        """Write a version with these parts, whose base is what was written before; returns its number."""
        if self.refused:
            raise DataError(self.refused)
        number, self._attempt = self.last + 1, self._attempt + 1
        frames, version = f"frames/{self._attempt}", f"version/{self._attempt}"
        self._records.forget(f"version/{self._attempt - 2}")
        self._records.tell(frames, line_of(self._written(number, values, base)))
        if self._records.leads:
            self._records.tell(version, line_of(self._led(frames, number, step)))
        out = self._heard(version)
        self.last, self._has_base = out.number, True
        if out.is_anchor:
            self._last_anchor = out.number
        return out.number

    def _heard(self, about: str) -> _OutVersion:
        """What the first rank says. DataError where that is a failure."""
        out = _OutVersion.model_validate_json(self._records.hear_leader(about, self._stopped))
        if out.refused:
            self.refused = out.failure
        if out.failure and out.number:
            self.last, self._has_base = out.number, False
        if out.failure:
            raise DataError(out.failure)
        return out

    # ---- what each rank does

    def _written(self, number: int, values: Sequence[torch.Tensor], base: Sequence[torch.Tensor]) -> _RankFrames:
        is_anchor = self._is_due(number)
        try:
            with ThreadPoolExecutor(_WRITES, "geocomm-weights") as pool:
                delta, whole, writes = list[FrameFile](), list[FrameFile](), list[Future[None]]()
                for value, before in zip(values, base, strict=True):
                    packed = self._whole(value) if is_anchor else None
                    if self._has_base:
                        delta.append(self._keep(number, self._smaller(value, before, packed), pool, writes))
                    if packed is not None:
                        whole.append(self._keep(number, (packed, True), pool, writes))
                for write in writes:
                    write.result()
        except Exception as error:  # of whatever kind: the other ranks wait for a word
            return _RankFrames(failure=f"{self.url} cannot be written: {error_line(error)}")
        digests = tuple(part_digest(value) for value in values)
        return _RankFrames(digests=digests, delta=tuple(delta), whole=tuple(whole))

    def _is_due(self, number: int) -> bool:
        return not self._has_base or number - self._last_anchor >= self._anchor_every

    def _whole(self, value: torch.Tensor) -> torch.Tensor:
        return compress(coded(value), "lossless", threads=self._threads)

    def _smaller(
        self, value: torch.Tensor, before: torch.Tensor, packed: torch.Tensor | None
    ) -> tuple[torch.Tensor, bool]:
        """The part's frame for readers who have it as it was; and whether it is whole, since a delta is no win."""
        delta = make_delta(coded(value), coded(before), threads=self._threads)
        if delta.numel() * _NO_WIN > value.nbytes:
            packed = self._whole(value) if packed is None else packed
            if delta.numel() > _WORTH * packed.numel():
                return packed, True
        return delta, False

    def _keep(
        self, number: int, frame: tuple[torch.Tensor, bool], pool: ThreadPoolExecutor, writes: list[Future[None]]
    ) -> FrameFile:
        packed: Any = frame[0].numpy()
        content = packed.tobytes()
        sha256 = hashlib.sha256(content).hexdigest()
        if len(writes) >= 2 * _WRITES:  # frames in memory
            writes.pop(0).result()
        writes.append(pool.submit(self._create, frame_path(number, sha256), content))
        return FrameFile(sha256, len(content), frame[1])

    def _create(self, path: str, content: bytes) -> None:
        if not self._place.create(path, content):
            self._place.replace(path, content)  # damaged: its name is its hash

    # ---- what the first rank does

    def _begun(self, shapes: Sequence[TensorShape]) -> _OutVersion:
        """The newest version of the stream, where there is one."""
        try:
            heard = self._records.hear_all("parts", self._stopped)
            parts = [part for text in heard for part in _RankParts.model_validate_json(text).parts]
            self._layout = line_of(WeightLayout(tensors=tuple(shapes), parts=tuple(parts))).encode()
            if numbers := version_numbers(self._place):
                content = self._place.read(version_path(numbers[-1]))
                self._before = read_version(content, numbers[-1], self.url)
                hint = Hint.of(numbers[-1], content)
                if hint_of(self._place) != hint:  # a publisher died before it could say so
                    self._place.replace(NEWEST, line_of(hint).encode())
        except Exception as error:  # of whatever kind: the other ranks wait for a word
            return _OutVersion(failure=f"{self.url} cannot be used: {error_line(error)}")
        return _OutVersion(number=numbers[-1] if numbers else 0)

    def _led(self, told: str, number: int, step: int | None) -> _OutVersion:
        try:
            heard = self._records.hear_all(told, self._stopped)
            frames = [_RankFrames.model_validate_json(text) for text in heard]
            for rank, one in zip(self._records.ranks, frames, strict=True):
                if one.failure:
                    return _OutVersion(failure=f"rank {rank}: {one.failure}")
            return self._put_version(self._version(number, step, frames))
        except Exception as error:
            return _OutVersion(failure=f"{self.url} cannot be written: {error_line(error)}")

    def _version(self, number: int, step: int | None, frames: Sequence[_RankFrames]) -> WeightVersion:
        delta = [frame for one in frames for frame in one.delta]
        whole = [frame for one in frames for frame in one.whole]
        before, has_delta, is_anchor = self._before, self._has_base, self._is_due(number)
        if delta and all(frame.whole for frame in delta):  # a delta was a win nowhere
            whole, has_delta, is_anchor = delta, False, True
        known = before.anchors if before is not None else ()
        layout = hashlib.sha256(self._layout).hexdigest()
        if before is None or before.layout != layout:
            self._create(layout_path(layout), self._layout)
        version = WeightVersion(
            stream=before.stream if before is not None else secrets.token_hex(16),
            number=number,
            step=step,
            time=int(time.time()),
            layout=layout,
            parts=tuple(digest for one in frames for digest in one.digests),
            base=before.result if has_delta and before is not None else None,
            delta=tuple(delta) if has_delta else None,
            whole=tuple(whole) if is_anchor else None,
            anchors=(*known, number)[-2:] if is_anchor else known,
            readers=self._readers,
        )
        return version if self._keys is None else version.signed_by(self._keys)

    def _put_version(self, version: WeightVersion) -> _OutVersion:
        path, content = version_path(version.number), line_of(version).encode()
        self._tried.append(content)
        if not self._place.create(path, content):
            there = self._place.read(path)
            if there not in self._tried:
                failure = f"{self.url} has version {version.number} since just now: another publisher writes to it"
                return _OutVersion(failure=failure, refused=True)
            self._before = read_version(there, version.number, self.url)
            self._tried.clear()
            self._place.replace(NEWEST, line_of(Hint.of(version.number, there)).encode())
            failure = f"{self.url} took version {version.number} after all; the next one has all weights"
            return _OutVersion(failure=failure, number=version.number)
        self._before = version
        self._tried.clear()
        try:
            self._place.replace(NEWEST, line_of(Hint.of(version.number, content)).encode())
            if version.whole is not None and len(version.anchors) > 1:
                self._remove_before(version.anchors[0])
        except OSError as error:  # readers list the stream; the next anchor removes more
            logger().warning("weights: version %d is out, but %s: %s", version.number, self.url, error)
        return _OutVersion(number=version.number, is_anchor=version.whole is not None)

    def _remove_before(self, kept: int) -> None:
        """The versions first: nobody begins to fetch what is about to go."""
        for number in version_numbers(self._place):
            if number < kept:
                self._place.remove(version_path(number))
        # What a publisher left that died meanwhile goes, too.
        for name in self._place.names(FRAMES):
            if name < frame_folder(kept):
                self._place.remove(name)
