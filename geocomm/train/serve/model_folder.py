"""Which kind of model a folder holds, and under which name it is served."""

from __future__ import annotations

import enum
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geocomm.core.bad_input import BadInput
from geocomm.train.runs.checkpoint_folder import MANIFEST
from geocomm.train.runs.run_folder import RunFolder

_RECORD = "export.json"
_WEIGHTS = (".safetensors", ".gguf", ".onnx", ".data")
_LONGEST_NAME = 96
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")


class Format(enum.StrEnum):
    """What `geocomm export` writes."""

    HF = "hf"
    ONNX = "onnx"
    GGUF = "gguf"


@dataclass(frozen=True)
class ModelFolder:
    """A folder that holds one model."""

    path: Path
    """Absolute."""
    format: Format

    @property
    def gguf_file(self) -> Path:
        """The file of a GGUF folder. BadInput: it has none, or several."""
        files = sorted(self.path.glob("*.gguf"))
        if len(files) != 1:
            raise BadInput(f"{self.path} holds {len(files)} *.gguf files; one is served: move the others away")
        return files[0]


def default_name(folder: Path) -> str:
    """The folder's own name, also where it is a link to another one, less what a model's name may not have."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", Path(os.path.abspath(folder)).name)
    name = re.sub(r"([-.])[-.]+", r"\1", name)[:_LONGEST_NAME].strip("-.")
    return name or "model"


def open_folder(path: Path) -> ModelFolder:
    """What `path` holds: by its export.json, else by its files. Raises BadInput."""
    if not path.is_dir():
        raise BadInput(f"{path} is {'no folder' if path.exists() else 'not there'}; name a folder of geocomm export")
    path = path.resolve()
    record = path / _RECORD
    if record.is_file():
        return ModelFolder(path, _recorded_format(record))
    if RunFolder(path).has_run() or (path / MANIFEST).exists():
        raise BadInput(f"{path} is a run or a checkpoint; first: geocomm export {path} FOLDER --format hf")
    if any(path.glob("*.gguf")):
        return ModelFolder(path, Format.GGUF)
    if any(path.glob("*.onnx")):
        return ModelFolder(path, Format.ONNX)
    if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        return ModelFolder(path, Format.HF)
    raise BadInput(f"{path} holds no model: neither config.json with *.safetensors nor a *.gguf file")


def check_name(name: str) -> str:
    """`name`, if the engines take it as the name of a model. Raises BadInput."""
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name) or "--" in name or ".." in name:
        raise BadInput(
            f"--name {name}: expected 1 to {_LONGEST_NAME} letters, digits, '.', '_' and '-', the last two neither "
            "doubled nor at an end"
        )
    return name


def _recorded_format(record: Path) -> Format:
    """The format that export.json says; BadInput where its weights are not those that it lists, as in half a copy.

    The other files may be changed: a user adds a chat template, or writes a better README.
    """
    try:
        found: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        kind = Format(found["format"])
        files = {name: int(file["bytes"]) for name, file in found["files"].items() if name.endswith(_WEIGHTS)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f"{record} is not a record of geocomm export; export the model again") from None
    for name, size in files.items():
        file = record.parent / name
        if not file.is_file() or file.stat().st_size != size:
            raise BadInput(f"{file} is not as it was exported ({size} bytes); copy or export the folder again")
    return kind
