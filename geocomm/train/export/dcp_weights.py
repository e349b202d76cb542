"""The weights in a checkpoint of torch.distributed.checkpoint (DCP), read without a process group. Imports torch."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from enum import Enum
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, Metadata
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from geocomm.core.bad_input import BadInput
from geocomm.train.export.weights import LazyWeights
from geocomm.train.export.weights_found import DCP_METADATA

_MODEL = "model"
_DCP = "torch.distributed.checkpoint"
_ALLOWED = {
    f"{_DCP}.metadata": {
        "_MEM_FORMAT_ENCODING",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
    },
    f"{_DCP}.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
}
"""What DCP's metadata is made of, besides the element types of torch."""
_OTHER_NAMES = {"pathlib._local": "pathlib"}
"""Modules as Python 3.13 names them, by what all versions call them."""


def open_dcp(folder: Path) -> Mapping[str, torch.Tensor]:
    """The weights that `torch.distributed.checkpoint.save` wrote, of FSDP2 or of a plain model; see `LazyWeights`.

    The model's state dict is the entry "model" of what was saved, at any depth, or all of it. Other entries, such as an
    optimizer's, are left alone. Raises BadInput.
    """
    metadata = _metadata(folder / DCP_METADATA)
    found = _weights_of(folder, metadata)
    _require_files(folder, metadata, {entry for entry, _ in found.values()})
    return LazyWeights({name: partial(_read, folder, metadata, *where) for name, where in found.items()})


class _Refused(pickle.UnpicklingError):
    """The text is the name of the class."""


class _Unpickler(pickle.Unpickler):
    """Of metadata that any supported version of Python wrote."""

    def find_class(self, module: str, name: str) -> Any:
        """Raises _Refused for what DCP does not put into its metadata."""
        module = _OTHER_NAMES.get(module, module)
        if (module, name) == ("builtins", "getattr"):
            return _member
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        found = getattr(torch, name, None) if module == "torch" else None
        if isinstance(found, torch.dtype):
            return found
        raise _Refused(f"{module}.{name}")


def _member(kind: object, name: object) -> Enum:
    """In place of getattr, by which Python before 3.11.4 pickles members of enumerations."""
    if not (isinstance(kind, type) and issubclass(kind, Enum) and isinstance(name, str)):
        raise _Refused("builtins.getattr")
    return kind[name]


def _metadata(path: Path) -> Metadata:
    try:
        with path.open("rb") as file:
            found = _Unpickler(file).load()
    except FileNotFoundError:
        raise BadInput(
            f"{path.parent} is no checkpoint of torch.distributed.checkpoint: it has no {DCP_METADATA}; give the "
            "folder that its save() wrote"
        ) from None
    except _Refused as error:
        raise BadInput(
            f"{path} holds objects that geocomm does not unpickle, since that may run code: {error}"
        ) from None
    except Exception as error:  # a damaged pickle ends in an error of any class
        raise BadInput(f"{path} cannot be read ({_words(error)}); copy the checkpoint again") from error
    if not isinstance(found, Metadata) or not isinstance(found.storage_data, dict):
        raise BadInput(f"{path} holds no metadata of torch.distributed.checkpoint; copy the checkpoint again")
    return found


def _weights_of(folder: Path, metadata: Metadata) -> dict[str, tuple[str, TensorStorageMetadata]]:
    """The entry of each weight in the metadata, and its value."""
    nested: dict[str, tuple[str, TensorStorageMetadata]] = {}
    flat: dict[str, tuple[str, TensorStorageMetadata]] = {}
    models: set[str] = set()
    paths: Mapping[str, tuple[Any, ...]] = metadata.planner_data or {}
    for entry, stored in metadata.state_dict_metadata.items():
        if isinstance(stored, TensorStorageMetadata):
            *parents, name = paths.get(entry, (entry,))
            if not parents:
                flat[str(name)] = (entry, stored)
            elif parents[-1] == _MODEL:
                nested[str(name)] = (entry, stored)
                models.add(".".join(map(str, parents)))
    if len(models) > 1:
        raise BadInput(f"{folder} holds several models ({', '.join(sorted(models))}); save one of them by itself")
    if not nested and not flat:
        raise BadInput(f"{folder} holds no model; save {{'model': model.state_dict()}}")
    return nested or flat


def _require_files(folder: Path, metadata: Metadata, entries: set[str]) -> None:
    """Raise BadInput for a file that is missing or too short."""
    ends: dict[str, int] = {}
    for index, place in metadata.storage_data.items():
        if index.fqn in entries:
            ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
    for name, end in sorted(ends.items()):
        path = folder / name
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise BadInput(f"{folder / DCP_METADATA} names the file {name}, which is outside of its folder")
        if not path.is_file() or path.stat().st_size < end:
            state = "is cut off" if path.is_file() else "is missing"
            raise BadInput(f"{path} {state}; copy it from the machine whose rank wrote it")


def _read(folder: Path, metadata: Metadata, entry: str, stored: TensorStorageMetadata) -> torch.Tensor:
    covered = sum(math.prod(chunk.sizes) for chunk in stored.chunks)
    if covered < math.prod(stored.size):
        raise BadInput(
            f"{folder} has {covered} of {math.prod(stored.size)} values of {entry}: the rank that has the others did "
            "not save them. Take an older checkpoint"
        )
    found = torch.empty(stored.size, dtype=stored.properties.dtype)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    reader = FileSystemReader(folder)
    try:
        planner.set_up_planner({entry: found}, metadata, is_coordinator=True)
        reader.set_up_storage_reader(metadata, is_coordinator=True)
        reader.read_data(planner.create_local_plan(), planner).wait()
    except Exception as error:  # damaged bytes end in an error of any class
        raise BadInput(f"{entry} cannot be read from {folder} ({_words(error)}); copy the checkpoint again") from error
    return found


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
