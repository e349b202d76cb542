"""Saving and restoring a whole run over all ranks. Imports torch and deepspeed.

Every rank writes what it owns below its own `output_dir`; machines may share that folder or have disks of their own.
Errors of single ranks are agreed on, so that all ranks leave together and a failed save leaves the old ones alone.
"""

from __future__ import annotations

import contextlib
import json
import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from geocomm.core.bad_input import BadInput
from geocomm.core.errors import GeocommError
from geocomm.core.file_systems import free_bytes
from geocomm.core.place import Place
from geocomm.group.membership.collective_verdict import agree, attempt
from geocomm.integrations.deepspeed_seams import choose_writers, defer_write_errors
from geocomm.sync.gradients.feedback_state import assign_states, header_of, take_over
from geocomm.train.loop.engine import TrainedModel
from geocomm.train.loop.local_sync import LocalSync
from geocomm.train.runs import run_folder as folder

T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """How far a run is: optimizer steps done and sequences consumed by all ranks together."""

    step: int = 0
    consumed: int = 0


@dataclass(frozen=True)
class Restored:
    """What a checkpoint brought. ranks: that wrote it; lost_feedback: those whose residuals no machine has. data_state:
    that of `Sequences`. anchor_only: local steps begin anew from its anchor, or from the weights of mode gradients.
    of_local: of local steps, in a run without."""

    progress: Progress
    ranks: int
    lost_feedback: tuple[int, ...] = ()
    data_state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    anchor_only: bool = False
    of_local: bool = False


class RunCheckpoints:
    """The checkpoints of one run. All methods are collective."""

    def __init__(
        self,
        trained: TrainedModel,
        place: Place,
        root: Path,
        keep: int,
        manifest: Mapping[str, Any],
        *,
        data_state: Callable[[int], dict[str, Any]] = lambda consumed: {},
        elastic: bool = False,
    ) -> None:
        """root: the checkpoint folder as this machine sees it; manifest: what each checkpoint says of the run.
        data_state: that of `Sequences`.
        elastic: of a site of an elastic run. It takes weights and optimizer from a checkpoint, and no more: what sites
        share is in the run folder.
        """
        self._elastic = elastic
        engine, sync = trained.engine, trained.sync
        self._manifest = dict(manifest)
        self._data_state = data_state
        self._engine = engine
        self._sync = sync
        self._local = trained.local
        self._place = place
        self._root = root
        self._keep = keep
        self._writer = defer_write_errors(engine)
        on_disk = self._ranks_on_disk()
        self._is_disk_leader = on_disk[0] == place.rank
        if trained.local is not None:
            agree(place, self._unequal_shards(trained.local, on_disk))
        # Replicas have the same shard and would write the same file: one copy on each disk.
        replicas = next((one.replicas for one in (sync, trained.local) if one is not None), [place.rank])
        writes_shard = min(set(on_disk) & set(replicas)) == place.rank
        choose_writers(engine, is_disk_leader=self._is_disk_leader, writes_shard=writes_shard)

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

    def _unequal_shards(self, local: LocalSync, on_disk: list[int]) -> str | None:
        """What is wrong where sites that have other shards would write files of the same names."""
        sites = local.sites
        writers = sites.names_of(on_disk)
        sizes = {name: len(ranks) for name, ranks in zip(sites.names, sites.ranks, strict=True) if name in writers}
        if not self._engine.zero_optimization() or len(set(sizes.values())) < 2:
            return None
        found = ", ".join(f"{site}: {ranks}" for site, ranks in sizes.items())
        return (
            f"with ZeRO a checkpoint has a shard for each rank of a site, and the sites that write to {self._root} are "
            f"of unequal size (ranks: {found}); give each site an output_dir of its own, or turn checkpoints off"
        )

    def save(self, progress: Progress) -> Path:
        """Write a checkpoint; returns its folder. BadInput on all ranks if any could not, and nothing has changed."""
        step, local = progress.step, self._local
        partial = folder.partial_folder(self._root, step)
        error = attempt(lambda: folder.begin(self._root, step)) if self._is_disk_leader else None
        try:
            self._agree_saved(step, error)
            self._writer.error = None
            outer = None if local is None else local.outer_state()  # before the model is read: it may merge a round
            with contextlib.nullcontext() if local is None else local.anchor():
                self._engine.save_checkpoint(str(partial), tag=folder.ENGINE_FOLDER, save_latest=False)
            error = self._writer.error or attempt(lambda: self._write_own(partial, progress, outer))
            self._agree_saved(step, error)
            error = attempt(lambda: folder.publish(self._root, step)) if self._is_disk_leader else None
            self._agree_saved(step, error)
        finally:
            if self._is_disk_leader:
                folder.discard(self._root, step)
        if self._is_disk_leader:
            folder.prune(self._root, self._keep)
        return folder.step_folder(self._root, step)

    def _write_own(self, partial: Path, progress: Progress, outer: Mapping[str, Any] | None) -> None:
        own = _random_state()
        if self._sync is not None:
            own["feedback"] = self._sync.hook.state_dict()
        if self._local is not None:
            own["local"] = {"site": self._place.site, "outer": outer, **self._local.site_state()}
        torch.save(own, _rank_file(partial, self._place.rank))
        if self._is_disk_leader:
            # A copy of the folder has the same id, and what another disk has of the same step another one.
            about = {"format": 1, "id": uuid.uuid4().hex, "step": progress.step, "consumed": progress.consumed}
            whole = {**about, **self._manifest, "data_state": self._data_state(progress.consumed)}
            if self._local is not None:
                whole["finished"] = self._local.is_finished
            (partial / folder.MANIFEST).write_text(json.dumps(whole, indent=1))

    def _agree_saved(self, step: int, error: str | None) -> None:
        if error is not None:
            free = free_bytes(self._root) / 1e6
            error = (
                f"the checkpoint of step {step} could not be written to {self._root} ({free:.0f} MB free): {error}; "
                f"earlier checkpoints are untouched"
            )
        agree(self._place, error)

    def restore(self, step: int) -> Restored:
        """Load the checkpoint of `step` into the engine and, if as many ranks wrote it, into the random generators."""
        source = folder.step_folder(self._root, step)
        manifest = folder.complete_checkpoints(self._root)[step]
        of_local = self._local is None and manifest.get("sync_mode") == "local"
        restored = Restored(
            Progress(step, int(manifest["consumed"])),
            int(manifest["world_size"]),
            data_state=manifest.get("data_state", {}),
            of_local=of_local,
        )
        as_many = restored.ranks == self._place.world_size and not self._elastic and not of_local
        own = _rank_file(source, self._place.rank)
        lacks_own = as_many and not own.is_file()
        agree(
            self._place,
            f"{own} is missing: this machine did not write it; restore it or the rank order" if lacks_own else None,
        )
        state = self._read(step, own, lambda: torch.load(own, weights_only=True)) if as_many else {}
        local = self._local_state(source, manifest, state)
        self._read(step, source / folder.ENGINE_FOLDER, lambda: self._load_engine(source))
        if self._local is not None and local:
            try:
                self._local.load_state_dict(local, local["outer"])
            except GeocommError as failure:  # on all ranks
                raise BadInput(f"the checkpoint {source} does not fit: {failure}") from failure
        if not as_many:
            lost = self._take_over_feedback(step, source, restored.ranks)
            return replace(restored, lost_feedback=lost, anchor_only=self._local is not None and not self._elastic)
        _restore_random_state(state)
        if self._sync is not None and "feedback" in state:
            self._sync.hook.load_state_dict(state["feedback"])
        return replace(restored, anchor_only=self._local is not None and not local)

    def _read(self, step: int, path: Path, read: Callable[[], T]) -> T:
        """Collective. What `read` finds at `path`, of the checkpoint of `step`; BadInput on all ranks, with the way on,
        where it fails on any."""
        found: list[T] = []
        error = None
        try:
            found.append(read())
        except Exception as failure:  # what damaged bytes lead to in pickle, zipfile, torch and DeepSpeed
            why = " ".join(str(failure).split()[:40]) or type(failure).__name__
            older = [str(one) for one in folder.complete_checkpoints(self._root) if one < step]
            way_on = (
                f"Move {folder.step_folder(self._root, step)} away, at every machine that has one: the run goes on "
                f"from the checkpoint of step {older[-1]}"
                if older
                else "There is no older checkpoint"
            )
            error = f"the checkpoint of step {step} is damaged: {path} cannot be read: {why}. {way_on}"
        agree(self._place, error)
        return found[0]

    def _load_engine(self, source: Path) -> None:
        files = source / folder.ENGINE_FOLDER
        if not any(files.glob("*model_states.pt")):
            raise FileNotFoundError(f"{files}/*model_states.pt is missing")
        self._engine.load_checkpoint(str(source), tag=folder.ENGINE_FOLDER)

    def _local_state(self, source: Path, manifest: Mapping[str, Any], state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The rank's part of a state of local steps, where these sites wrote it, with rounds begun if it has any."""
        if self._local is None or self._elastic or manifest.get("sites") != self._manifest["sites"]:
            return {}
        local = state.get("local", {})
        error = None
        if local and local["site"] != self._place.site:
            error = f"{source} was written with this rank at site {local['site']}; restore the order of the ranks"
        agree(self._place, error)
        if local and local["outer"] is not None:
            self._local.begin()
        return local

    def _take_over_feedback(self, step: int, source: Path, ranks: int) -> tuple[int, ...]:
        """The residuals of `ranks` other ranks: each goes to one that can read it. Those that nobody can."""
        if self._sync is None:
            return ()

        def look() -> dict[int, dict[str, Any]]:
            files = {old: path for old in range(ranks) if (path := _rank_file(source, old)).is_file()}
            states = {old: torch.load(path, weights_only=True, mmap=True) for old, path in files.items()}
            return {old: header_of(state["feedback"]) for old, state in states.items() if "feedback" in state}

        headers = self._read(step, source, look)
        everyone: list[Any] = [None] * self._place.world_size
        dist.all_gather_object(everyone, (self._sync.hook.place[2], headers))
        header = next((one for _, found in everyone for one in found.values()), None)
        if header is None:  # that run had none
            return ()
        assigned = assign_states(everyone)
        mine = [
            torch.load(_rank_file(source, old), weights_only=True)["feedback"] for old in assigned[self._place.rank]
        ]
        self._sync.hook.load_state_dict(take_over(mine, header, self._sync.hook.place))
        return tuple(sorted(set(range(ranks)).difference(*assigned)))


def _rank_file(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"rank-{rank:05d}.pt"


def _random_state() -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    numpy_state: Any = np.random.get_state()
    kind, keys, position, has_gauss, cached = numpy_state
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
