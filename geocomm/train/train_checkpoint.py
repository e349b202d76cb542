"""Saving and restoring a whole run over all ranks. Imports torch and deepspeed.

Every rank writes what it owns below its own `output_dir`; machines may share that folder or have disks of their own.
Errors of single ranks are agreed on, so that all ranks leave together and a failed save leaves the old ones alone.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from geocomm.gradients.feedback_state import assign_states, header_of, take_over
from geocomm.train import checkpoint_folder as folder
from geocomm.train.gradient_sync import GradientSync
from geocomm.train.train_errors import BadInput
from geocomm.train.train_launch import Place

T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """How far a run is: optimizer steps done and sequences consumed by all ranks together."""

    step: int = 0
    consumed: int = 0


@dataclass(frozen=True)
class Restored:
    """What a checkpoint brought. ranks: that wrote it; lost_feedback: those whose residuals no machine has."""

    progress: Progress
    ranks: int
    lost_feedback: tuple[int, ...] = ()


def agree(place: Place, error: str | None) -> None:
    """Collective. Raises BadInput on every rank if any rank has an `error`."""
    errors: list[tuple[str, str | None] | None] = [None] * place.world_size
    dist.all_gather_object(errors, (place.describe(), error))
    failed = [item for item in errors if item is not None and item[1] is not None]
    if failed:
        who = f"{failed[0][0]}: " if place.world_size > 1 else ""
        raise BadInput(f"{who}{failed[0][1]}")


def attempt(action: Callable[[], Any]) -> str | None:
    """Run `action`; the text of its OSError or RuntimeError (what torch raises for a failed write), or None."""
    try:
        action()
    except (OSError, RuntimeError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return None


def together(place: Place, action: Callable[[], T]) -> T:
    """Collective. What `action` returns here; BadInput on every rank if it raised BadInput or OSError on any."""
    result: list[T] = []
    error = None
    try:
        result.append(action())
    except (BadInput, OSError) as failure:
        error = str(failure)
    agree(place, error)
    return result[0]


class _DeferringEngine(TorchCheckpointEngine):
    """DeepSpeed's writer, but a failed write is kept in `error` instead of raised.

    DeepSpeed's save is collective: a rank that left it by an exception would leave the others waiting.
    """

    def __init__(self, zipfile_serialization: bool) -> None:
        super().__init__()
        self.zipfile_serialization = zipfile_serialization
        self.error: str | None = None

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._keep(attempt(lambda: super(_DeferringEngine, self).makedirs(path, exist_ok=exist_ok)))

    def save(self, state_dict: Any, path: str) -> None:
        self._keep(attempt(lambda: super(_DeferringEngine, self).save(state_dict, path)))

    def _keep(self, error: str | None) -> None:
        self.error = self.error or error


class RunCheckpoints:
    """The checkpoints of one run. All methods are collective."""

    def __init__(
        self, engine: deepspeed.DeepSpeedEngine, sync: GradientSync | None, place: Place, root: Path, keep: int
    ) -> None:
        """`root` is the checkpoint folder as this rank's machine sees it."""
        self._engine = engine
        self._sync = sync
        self._place = place
        self._root = root
        self._keep = keep
        self._writer = _DeferringEngine(engine.checkpoint_engine.zipfile_serialization)
        engine.checkpoint_engine = self._writer
        # Not needed (`python -m deepspeed.utils.zero_to_fp32` is the same script), and its failure would hang the rest.
        engine._copy_recovery_script = lambda save_path: None
        on_disk = self._ranks_on_disk()
        self._is_disk_leader = on_disk[0] == place.rank
        if not engine.zero_optimization_partition_weights():
            # The file that every rank reads on resume: one copy on each disk.
            engine.save_non_zero_checkpoint = self._is_disk_leader
        if sync is not None and engine.save_zero_checkpoint:
            # Replicas have the same shard and would write the same file: one copy on each disk.
            engine.save_zero_checkpoint = min(set(on_disk) & set(sync.replicas)) == place.rank

    def _ranks_on_disk(self) -> list[int]:
        """The ranks that see the same checkpoint folder as this one, ascending."""
        nonce: list[str] = [uuid.uuid4().hex]
        dist.broadcast_object_list(nonce, src=0)
        probe = self._root / f".probe-{nonce[0]}"

        def mark() -> None:
            self._root.mkdir(parents=True, exist_ok=True)
            Path(f"{probe}-{self._place.rank}").touch()

        error = attempt(mark)
        agree(self._place, error and f"checkpoints cannot be written to {self._root}: {error}")
        seen = [rank for rank in range(self._place.world_size) if Path(f"{probe}-{rank}").exists()]
        dist.barrier()
        Path(f"{probe}-{self._place.rank}").unlink(missing_ok=True)
        return seen

    def save(self, progress: Progress, manifest: dict[str, Any]) -> Path:
        """Write a checkpoint; returns its folder. BadInput on all ranks if any could not, and nothing has changed."""
        step = progress.step
        partial = folder.partial_folder(self._root, step)
        error = attempt(lambda: folder.begin(self._root, step)) if self._is_disk_leader else None
        try:
            self._agree_saved(step, error)
            self._writer.error = None
            self._engine.save_checkpoint(str(partial), tag=folder.ENGINE_FOLDER, save_latest=False)
            error = self._writer.error or attempt(lambda: self._write_own(partial, progress, manifest))
            self._agree_saved(step, error)
            error = attempt(lambda: folder.publish(self._root, step)) if self._is_disk_leader else None
            self._agree_saved(step, error)
        finally:
            if self._is_disk_leader:
                folder.discard(self._root, step)
        if self._is_disk_leader:
            folder.prune(self._root, self._keep)
        return folder.step_folder(self._root, step)

    def _write_own(self, partial: Path, progress: Progress, manifest: dict[str, Any]) -> None:
        own = _random_state()
        if self._sync is not None:
            own["feedback"] = self._sync.state_dict()
        torch.save(own, _rank_file(partial, self._place.rank))
        if self._is_disk_leader:
            whole = {"format": 1, "step": progress.step, "consumed": progress.consumed, **manifest}
            (partial / folder.MANIFEST).write_text(json.dumps(whole, indent=1))

    def _agree_saved(self, step: int, error: str | None) -> None:
        if error is not None:
            free = folder.free_bytes(self._root) / 1e6
            error = (
                f"the checkpoint of step {step} could not be written to {self._root} ({free:.0f} MB free): {error}; "
                f"earlier checkpoints are untouched"
            )
        agree(self._place, error)

    def restore(self, step: int) -> Restored:
        """Load the checkpoint of `step` into the engine and, if as many ranks wrote it, into the random generators."""
        source = folder.step_folder(self._root, step)
        manifest = folder.complete_checkpoints(self._root)[step]
        restored = Restored(Progress(step, int(manifest["consumed"])), int(manifest["world_size"]))
        as_many = restored.ranks == self._place.world_size
        own = _rank_file(source, self._place.rank)
        if as_many and not own.is_file():
            error = f"{own} is missing: this machine did not write it; restore it or the rank order"
        else:
            error = None
        agree(self._place, error)
        error = attempt(lambda: self._engine.load_checkpoint(str(source), tag=folder.ENGINE_FOLDER))
        agree(self._place, error and f"the checkpoint {source} cannot be loaded: {error}")
        if not as_many:
            return replace(restored, lost_feedback=self._take_over_feedback(source, restored.ranks))
        state = torch.load(own, weights_only=True)
        _restore_random_state(state)
        if self._sync is not None and "feedback" in state:
            self._sync.load_state_dict(state["feedback"])
        return restored

    def _take_over_feedback(self, source: Path, ranks: int) -> tuple[int, ...]:
        """The residuals of `ranks` other ranks: each goes to one that can read it. Those that nobody can."""
        if self._sync is None:
            return ()
        headers: dict[int, dict[str, Any]] = {}

        def look() -> None:
            for old in range(ranks):
                if (path := _rank_file(source, old)).is_file():
                    state = torch.load(path, weights_only=True, mmap=True)
                    if "feedback" in state:
                        headers[old] = header_of(state["feedback"])

        error = attempt(look)
        agree(self._place, error and f"the residuals in {source} cannot be read: {error}")
        everyone: list[Any] = [None] * self._place.world_size
        dist.all_gather_object(everyone, (self._sync.place[2], headers))
        header = next((one for _, found in everyone for one in found.values()), None)
        if header is None:  # that run had none
            return ()
        assigned = assign_states(everyone)
        mine = [
            torch.load(_rank_file(source, old), weights_only=True)["feedback"] for old in assigned[self._place.rank]
        ]
        self._sync.load_state_dict(take_over(mine, header, self._sync.place))
        return tuple(sorted(set(range(ranks)).difference(*assigned)))


def _rank_file(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"rank-{rank:05d}.pt"


def _random_state() -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    state = {
        "torch": torch.get_rng_state(),
        "python": [version, list(internal), gauss],
        "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _restore_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
