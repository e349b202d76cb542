"""Whether a folder has weights to be exported, and as what: without torch, so that what has none is refused at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from geocomm.core.bad_input import BadInput
from geocomm.train.export.export_record import RECORD
from geocomm.train.runs.run_folder import MANIFEST, RunFolder, complete_checkpoints, step_folder

DCP_METADATA = ".metadata"
"""The file of a torch.distributed.checkpoint folder that says what is in it."""


@dataclass(frozen=True)
class Found:
    """Where the weights lie, and as what: a checkpoint of `geocomm train`, one of torch.distributed.checkpoint (dcp),
    or a model that geocomm exported."""

    kind: Literal["checkpoint", "dcp", "exported"]
    path: Path


def find_weights(path: Path) -> Found:
    """What `path` is: a run's folder, its `checkpoints`, one of these, a DCP folder, or an exported model.

    Raises BadInput where it is none of these.
    """
    if not path.is_dir():
        raise BadInput(f"{path} does not exist, or is no folder; give a run's output_dir or a checkpoint")
    if (path / MANIFEST).is_file():
        return Found("checkpoint", path)
    if (path / DCP_METADATA).is_file():
        return Found("dcp", path)
    for root in (path, RunFolder(path).checkpoints):
        if steps := complete_checkpoints(root):
            return Found("checkpoint", step_folder(root, max(steps)))
    for folder in (path, RunFolder(path).export):
        if (folder / RECORD).is_file():
            return Found("exported", folder)
    raise BadInput(
        f"{path} is no run with a complete checkpoint, no checkpoint and no exported model; give the output_dir of a "
        "run with checkpoint.at_end=true, one of its checkpoints/step-… folders, or a folder of "
        "torch.distributed.checkpoint"
    )
