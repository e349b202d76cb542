"""export.json: where an exported model comes from, what it is, and what was checked. No torch."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from geocomm.core.bad_input import BadInput

RECORD = "export.json"
"""The record's name in the folder. It is written last, so a folder that has it is whole."""

Format = Literal["hf", "onnx", "gguf"]  # gguf: of versions up to 0.3
Dtype = Literal["fp32", "bf16", "fp16"]


class _RecordPart(BaseModel):
    model_config = ConfigDict(frozen=True, protected_namespaces=())


class TrainedBy(_RecordPart):
    """The training that made the weights; None: not known."""

    path: str
    """The run's folder, or the checkpoint."""
    step: int | None = None
    world_size: int | None = None
    sites: dict[str, int] | None = None
    """The number of ranks of each site."""
    zero_stage: int | None = None
    precision: Dtype | None = None
    sync_mode: Literal["gradients", "local"] | None = None
    sync_preset: str | None = None
    """The preset of local steps."""
    sync_codec: str | None = None
    """The codec with error feedback; null: the preset's, or none."""
    codec: str | None = None
    """The codec of other traffic between sites."""


class HeldOut(_RecordPart):
    """The loss on held-out text."""

    sequences: int
    loss: float | None = None
    """The exported model's loss; null: not computed."""
    run_loss: float | None = None
    """The loss that the run logged at the same step; null: it logged none."""


class Verification(_RecordPart):
    """The folder, loaded again, against the model built from the weights."""

    sequences: int
    held_out: bool
    """Whether the sequences are held-out text; false: random tokens."""
    max_logit_difference: float
    argmax_equal: bool


class FileFacts(_RecordPart):
    """One file of the folder."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """The size and hash of a file, which is read for it."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(bytes=path.stat().st_size, sha256=digest)


class ExportRecord(_RecordPart):
    """What export.json holds."""

    format: Format
    geocomm: str
    """The version of geocomm that wrote the record."""
    source: TrainedBy
    model_type: str
    dtype: Dtype
    parameters: int
    data: str | None
    """The fingerprint of the packed training data; null: not known."""
    held_out: HeldOut | None
    held_out_reason: str | None = None
    """Why the loss was not computed."""
    verify: Verification | None
    files: dict[str, FileFacts]
    """The files of the folder by name, export.json left out."""

    def text(self) -> str:
        """The record as it is written."""
        return self.model_dump_json(indent=1) + "\n"


def read_record(folder: Path) -> ExportRecord | None:
    """The record in `folder`; None where there is none. Raises BadInput where it cannot be read."""
    path = folder / RECORD
    try:
        return ExportRecord.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValidationError) as error:
        raise BadInput(f"{path} cannot be read: {' '.join(str(error).split())}; export the model again") from None


def read_hf_record(folder: Path) -> ExportRecord:
    """The record of a Hugging Face folder. Raises BadInput where `folder` is another thing."""
    record = read_record(folder)
    if record is None or record.format != "hf":
        raise BadInput(f"{folder} is no Hugging Face folder; export from the run, or from its checkpoint")
    return record
