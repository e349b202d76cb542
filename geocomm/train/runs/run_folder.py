"""The folder of a run: where its files lie (nothing else puts these paths together), and its checkpoints on one disk,
which are named, completed, replaced and pruned here. No torch."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geocomm.core.file_systems import put_folder_in_place, write_whole


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run: `output_dir` of its configuration. Each machine has its own, or all share one."""

    path: Path

    @property
    def config(self) -> Path:
        """The configuration of the last start, with all defaults; rank 0 writes it."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """Entries of rank 0, a line of JSON each."""
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """Events of all ranks that have this folder, a line of JSON each."""
        return self.path / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints, laid out as said below."""
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard's files."""
        return self.path / "tensorboard"

    @property
    def export(self) -> Path:
        """The trained model, for other programs; rank 0 writes it at the end."""
        return self.path / "export"

    @property
    def elastic_site(self) -> Path:
        """Which site of an elastic run the folder is of."""
        return self.path / "elastic-site.json"

    def has_run(self) -> bool:
        """Whether a run has written here."""
        return self.metrics.exists() or self.checkpoints.exists()


# The checkpoints of a run:
#
# checkpoints/latest                    name of the newest complete checkpoint, written last
# checkpoints/step-00000200/manifest.json
# checkpoints/step-00000200/deepspeed/  DeepSpeed's files
# checkpoints/step-00000200/rank-00000.pt
# checkpoints/.partial-step-00000300/   being written, or left by a crash; never read
#
# A folder `step-N` is complete: it only comes into being by renaming a whole, synced `.partial-` one.

MANIFEST = "manifest.json"
LATEST = "latest"
ENGINE_FOLDER = "deepspeed"


def step_folder(root: Path, step: int) -> Path:
    """Where the complete checkpoint of `step` is or will be."""
    return root / f"step-{step:08d}"


def partial_folder(root: Path, step: int) -> Path:
    """Where the checkpoint of `step` is written."""
    return root / f".partial-step-{step:08d}"


def complete_checkpoints(root: Path) -> dict[int, dict[str, Any]]:
    """Step and manifest of every complete checkpoint under `root`, in step order."""
    found: dict[int, dict[str, Any]] = {}
    for folder in root.glob("step-*"):
        try:
            manifest = json.loads((folder / MANIFEST).read_text())
            found[int(manifest["step"])] = manifest
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return dict(sorted(found.items()))


def begin(root: Path, step: int) -> Path:
    """An empty partial folder for `step`. OSError if it cannot be made."""
    partial = partial_folder(root, step)
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    return partial


def publish(root: Path, step: int) -> None:
    """Make the partial checkpoint of `step` complete: sync, rename, then point `latest` at it."""
    partial, final = partial_folder(root, step), step_folder(root, step)
    put_folder_in_place(partial, final)  # a run that resumed from an older step may reach this one again
    write_whole(root / LATEST, final.name + "\n")


def discard(root: Path, step: int) -> None:
    """Remove the partial checkpoint of `step`, as far as possible."""
    shutil.rmtree(partial_folder(root, step), ignore_errors=True)


def prune(root: Path, keep: int) -> None:
    """Remove all but the newest `keep` complete checkpoints, and partial ones that a crash left."""
    for step in list(complete_checkpoints(root))[:-keep]:
        shutil.rmtree(step_folder(root, step), ignore_errors=True)
    for leftover in [*root.glob(".partial-step-*"), *root.glob(".stale-step-*")]:
        shutil.rmtree(leftover, ignore_errors=True)
