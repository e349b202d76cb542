"""The moments of a site's inner optimizers in its run folder: a site that comes back goes on with them.

    RUN_DIR/site/STEP/I-of-N.values    the state of the optimizers at rank I of N, one tensor after the other
    RUN_DIR/site/STEP/I-of-N.json      what is in it; written last

With a sharded model every rank keeps its own part, in the run folder of its node; else the first one keeps all, and
gives it to the others. No step waits for the disk: each hook
copies a little, and a thread writes that. So what is kept spans some steps, which moments do not mind.
"""

from __future__ import annotations

import contextlib
import queue
import shutil
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import xxhash
from pydantic import ValidationError
from torch.distributed.tensor import DTensor

from geocomm.core.file_systems import put_in_place, write_whole
from geocomm.core.message_log import logger
from geocomm.core.records import Record, line_of
from geocomm.core.run_dir import RunDir
from geocomm.sync.local_steps.model.fragments import digest
from geocomm.sync.local_steps.model.inner_optimizers import InnerOptimizers
from geocomm.sync.local_steps.model.optimizer_state import local_part

if TYPE_CHECKING:
    from geocomm.sync.local_steps.model.site_group import SiteGroup

_CHUNK_BYTES = 1 << 20
_MOST_PENDING = 64
"""Chunks that wait for the disk."""
_STALL_S = 0.004
"""How long a step hook copies at most; that of a site that leaves copies for `_LEAVING_STALL_S`."""
_LEAVING_STALL_S = 5.0


class _Value(Record):
    """An entry of the state of a parameter, or the step counter of a group."""

    slot: int
    """The number of the slot among all slots of all optimizers."""
    name: str
    shape: tuple[int, ...] | None = None
    """The shape of this rank's part of a tensor; None: the entry is `number`."""
    dtype: str = ""
    on_host: bool = False
    sharded: bool = False
    number: int | float | bool | None = None


class _Kept(Record):
    """What a rank has kept."""

    run: str
    step: int
    """The step of the run where the site was."""
    head_step: int
    """The step of the run, as the listed frames say that the site had applied."""
    model: str
    """The digest of the fragments' layout and the optimizers."""
    slots: tuple[tuple[int, ...], ...]
    """The shapes of the parameters: of this rank's parts."""
    values: tuple[_Value, ...]
    digest: str
    """XXH3 of the bytes."""


@dataclass(frozen=True)
class Loaded:
    """What a rank has read, and can take over."""

    kept: _Kept
    content: torch.Tensor


class SiteMoments:
    """The moments of this rank. `write` begins to keep them, and `advance` is called in every step hook."""

    def __init__(
        self, run_dir: Path | None, inner: InnerOptimizers, layout: str, ranks: SiteGroup, *, sharded: bool
    ) -> None:
        """run_dir: on this node; None at a rank that has no part. sharded: the ranks have parts; else the first rank's
        are all."""
        self._folder = RunDir(run_dir or Path()).moments
        self._inner, self._ranks = inner, ranks
        self._model = f"{layout} {inner.classes}"
        self._place, self._parts = (ranks.place, ranks.size) if sharded else (0, 1)
        self._writes = sharded or ranks.place == 0
        self._writing: _Writing | None = None
        self._complained = False

    @property
    def is_writing(self) -> bool:
        """Whether a `write` is not on the disk yet."""
        return self._writing is not None

    def write(self, run: str, step: int, head_step: int) -> None:
        """Begin to keep the moments as they are in the next steps. Does nothing where that is under way."""
        if self._writes and self._writing is None:
            with self._complaining():
                found, tensors = self._values()
                kept = _Kept(
                    run=run,
                    step=step,
                    head_step=head_step,
                    model=self._model,
                    slots=self._shapes(),
                    values=tuple(found),
                    digest="",
                )
                self._writing = _Writing(self._folder / str(step), f"{self._place}-of-{self._parts}", kept, tensors)

    def advance(self, *, leaving: bool = False) -> None:
        """Copy a little of what is to be written."""
        if self._writing is None:
            return
        with self._complaining():
            if self._writing.advance(_LEAVING_STALL_S if leaving else _STALL_S):
                self._writing = None
                self._remove_older()

    def close(self) -> None:
        """Give up what is not on the disk."""
        if self._writing is not None:
            self._writing.stop()
            self._writing = None

    def newest(self, run: str, most_step: int, after: int) -> int | None:
        """The step of the newest moments that all ranks have kept of this run, above `after`, and of a state that the
        journal has: it says `most_step`. Collective over the ranks of the site."""
        own: list[int] = []
        for step in self._steps() if self._writes else ():
            with contextlib.suppress(OSError, ValidationError):
                kept = _Kept.model_validate_json(self._path(step).read_bytes())
                if kept.run == run and kept.head_step <= most_step and step > after:
                    own.append(step)
        first, *others = self._ranks.all_gather(own)[: self._parts]
        return max(set(first).intersection(*others), default=None)

    def read(self, step: int) -> Loaded | None:
        """What was kept of this rank at the step; None where it does not fit, or has other bits. Collective over the
        ranks of the site."""
        told, content = self._read(self._path(step)) if self._writes else (None, None)
        if self._parts == 1:
            told, content = self._ranks.broadcast_bytes(told), self._ranks.broadcast_bytes(content)
        if told is None or content is None:
            return None
        try:
            kept = _Kept.model_validate_json(told.numpy().tobytes())
        except ValidationError:
            return None
        size = sum(_bytes_of(value) for value in kept.values)
        fits = kept.model == self._model and kept.slots == self._shapes()
        if not fits or size != len(content) or digest([content]) != kept.digest:
            return None
        return Loaded(kept, content)

    def take(self, loaded: Loaded) -> None:
        """Give the optimizers what was read."""
        every, offset = self._inner.slots(), 0
        for value in loaded.kept.values:
            slot, end = every[value.slot], offset + _bytes_of(value)
            if value.shape is None:
                slot.state[value.name] = value.number
                continue
            part = loaded.content[offset:end].clone().view(getattr(torch, value.dtype)).view(value.shape)
            offset = end
            there = slot.state.get(value.name)
            if isinstance(there, torch.Tensor) and local_part(there).shape == part.shape:
                local_part(there.detach()).copy_(part)
                continue
            like: Any = slot.parameter
            part = part if value.on_host or like is None else part.to(like.device)
            if value.sharded and isinstance(like, DTensor):
                mesh, placements = like.device_mesh, like.placements
                part = DTensor.from_local(part, mesh, placements, shape=like.shape, stride=like.stride())
            slot.state[value.name] = part

    @staticmethod
    def _read(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
        """The bytes of the header and of the values; none where they cannot be read."""
        try:
            told, content = path.read_bytes(), path.with_suffix(".values").read_bytes()
        except OSError:
            told = content = b""
        return _tensor_of(told), _tensor_of(content)

    def _path(self, step: int) -> Path:
        return self._folder / str(step) / f"{self._place}-of-{self._parts}.json"

    def _steps(self) -> list[int]:
        """At which this rank has kept something, the oldest first."""
        if not self._folder.is_dir():
            return []
        steps = [int(folder.name) for folder in self._folder.iterdir() if folder.name.isdecimal()]
        return sorted(step for step in steps if self._path(step).exists())

    def _remove_older(self) -> None:
        """Where there are several parts, another rank may not be done with the newest: the one before stays."""
        kept = self._steps()[-1 if self._parts == 1 else -2 :]
        for folder in self._folder.iterdir():
            if folder.name.isdecimal() and int(folder.name) < kept[0]:
                shutil.rmtree(folder, ignore_errors=True)

    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            () if one.parameter is None else tuple(local_part(one.parameter).shape) for one in self._inner.slots()
        )

    def _values(self) -> tuple[list[_Value], list[torch.Tensor]]:
        found: list[_Value] = []
        tensors: list[torch.Tensor] = []
        for index, slot in enumerate(self._inner.slots()):
            for name in slot.names:
                value = slot.state[name]
                if value is None or isinstance(value, (bool, int, float)):
                    found.append(_Value(slot=index, name=name, number=value))
                elif isinstance(value, torch.Tensor):
                    part = local_part(value.detach())
                    found.append(
                        _Value(
                            slot=index,
                            name=name,
                            shape=tuple(part.shape),
                            dtype=str(part.dtype).removeprefix("torch."),
                            on_host=part.device.type == "cpu",
                            sharded=isinstance(value, DTensor),
                        )
                    )
                    tensors.append(part)
                else:
                    raise _CannotKeepError(f"{name} is a {type(value).__name__}")
        return found, tensors

    @contextlib.contextmanager
    def _complaining(self) -> Generator[None]:
        """The site trains on where its moments cannot be kept, and says so once."""
        try:
            yield
        except (OSError, _CannotKeepError) as error:
            self.close()
            if not self._complained:
                logger().warning(
                    f"local steps: the moments of the optimizer are not kept in {self._folder} ({error}); a site that "
                    "comes back begins with new ones"
                )
            self._complained = True


class _CannotKeepError(ValueError):
    """A state with something else than tensors and numbers."""


class _Writing:
    """One write: hooks copy, and a thread writes to the disk."""

    def __init__(self, folder: Path, name: str, kept: _Kept, tensors: Sequence[torch.Tensor]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}.values"
        self._kept = kept
        self._left = _chunks(tensors)
        self._copied: queue.SimpleQueue[tuple[torch.Tensor, int, Any] | None] = queue.SimpleQueue()
        self._written: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()  # to copy to again: pages cost time
        self._failed: OSError | None = None
        self._stopped = False
        self._all_copied = False
        self._thread = threading.Thread(target=self._run, name="geocomm-moments", daemon=True)
        self._thread.start()

    def advance(self, stall_s: float) -> bool:
        """Copy for this time; whether all is on the disk. Raises OSError where that cannot be."""
        until = time.monotonic() + stall_s
        while not self._all_copied and time.monotonic() < until and self._thread.is_alive():
            if self._copied.qsize() >= _MOST_PENDING:
                if stall_s == _STALL_S:
                    break
                time.sleep(0.001)
                continue
            chunk = next(self._left, None)
            self._copied.put(None if chunk is None else self._copy(chunk))
            self._all_copied = chunk is None
        if self._thread.is_alive():
            return False
        if self._failed is not None:
            raise self._failed
        return True

    def _copy(self, chunk: torch.Tensor) -> tuple[torch.Tensor, int, Any]:
        """The chunk in host memory, its bytes, and what says that it is there: a GPU copies it behind the last step."""
        try:
            buffer = self._written.get_nowait()
        except queue.Empty:
            buffer = torch.empty(_CHUNK_BYTES, dtype=torch.uint8, pin_memory=chunk.is_cuda)
        buffer[: len(chunk)].copy_(chunk, non_blocking=True)
        event = torch.cuda.Event() if chunk.is_cuda else None
        if event is not None:
            event.record()
        return buffer, len(chunk), event

    def stop(self) -> None:
        """Give it up."""
        self._stopped = True
        self._copied.put(None)

    def _run(self) -> None:
        part = self._path.with_name(f".{self._path.name}.part")
        try:
            hasher = xxhash.xxh3_128()
            with part.open("wb") as file:
                while (item := self._copied.get()) is not None:
                    buffer, size, ready = item
                    if ready is not None:
                        ready.synchronize()
                    content = buffer.numpy().data[:size]
                    hasher.update(content)
                    file.write(content)
                    self._written.put(buffer)
            if self._stopped:
                return
            put_in_place(part, self._path)
            kept = self._kept.model_copy(update={"digest": hasher.hexdigest()})
            write_whole(self._path.with_suffix(".json"), line_of(kept))
        except OSError as error:
            self._failed = error
        finally:
            part.unlink(missing_ok=True)


def _chunks(tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    for tensor in tensors:
        flat = tensor.reshape(-1).view(torch.uint8)
        for start in range(0, len(flat), _CHUNK_BYTES):
            yield flat[start : start + _CHUNK_BYTES]


def _bytes_of(value: _Value) -> int:
    return 0 if value.shape is None else torch.Size(value.shape).numel() * getattr(torch, value.dtype).itemsize


def _tensor_of(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
