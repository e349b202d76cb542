"""Checkpoints of a run on one disk: naming, completeness, replacing, pruning. No torch.

```
checkpoints/latest                    name of the newest complete checkpoint, written last
checkpoints/step-00000200/manifest.json
checkpoints/step-00000200/deepspeed/  DeepSpeed's files
checkpoints/step-00000200/rank-00000.pt
checkpoints/.partial-step-00000300/   being written, or left by a crash; never read
```
A folder `step-N` is complete: it only comes into being by renaming a whole, synced `.partial-` one.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from geocomm.core.file_systems import put_folder_in_place, write_whole

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
