"""A folder of safetensors that is always whole: a version is written beside it, and takes its place by one rename.

FOLDER -> .FOLDER.17       a link, which is what is renamed
.FOLDER.17/                model.safetensors or its shards, geocomm.json, and what was there of other files
.FOLDER.partial/           what is being written
.FOLDER.lock               held by the process that follows the stream
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import torch
from pydantic import ValidationError
from typing_extensions import override

from geocomm.codecs.safetensors_header import DTYPE_NAMES, safetensors_header
from geocomm.core.bad_input import BadInput
from geocomm.core.errors import DataError
from geocomm.core.file_systems import FolderInUseError, fsync_path, held_by_one
from geocomm.core.records import line_of
from geocomm.data.places import error_line
from geocomm.weights.reader_targets import ReaderTarget, require_same
from geocomm.weights.stream_version import WeightVersion
from geocomm.weights.trained_tensors import sent_shape
from geocomm.weights.weight_layout import DTYPES, WeightLayout

SAID = "geocomm.json"
_KEPT = ".geocomm-version.json"
_OF_OTHER_WEIGHTS = (SAID, _KEPT, "export.json", "README.md")
"""What says in a model's folder of which weights it is."""
_INDEX = "model.safetensors.index.json"
FILE_BYTES = 5 << 30
"""Of a file of tensors, about, as others write them too."""
_MOST_HEADER_BYTES = 256 << 20
_WEIGHTS = re.compile(r".*\.(safetensors|bin|pt|pth|ckpt|gguf|onnx|data|h5|msgpack)(\.index\.json)?")


class WeightFolder(ReaderTarget):
    """The model in a folder."""

    def __init__(self, folder: Path, files_of: Path | None = None) -> None:
        """files_of: a model's folder, whose files other than weights lie beside those of each version. BadInput: the
        folder is of something else, or another process has it."""
        self.folder = folder.absolute()
        self._files_of = files_of
        self._held = ExitStack()
        self._partial = self._beside("partial")
        self._mapped: dict[str, torch.Tensor] = {}
        """In the files that are there."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._held.enter_context(held_by_one(self._beside("lock")))
        except FolderInUseError as error:
            raise BadInput(f"{folder} is followed by another geocomm subscribe already ({error})") from None
        if not self.folder.is_symlink() and self.folder.exists():
            if not self.folder.is_dir() or any(self.folder.iterdir()):
                raise BadInput(
                    f"{folder} has other files in it; name a folder that is new, or was made by this command"
                )
            self.folder.rmdir()
        if files_of is not None and not files_of.is_dir():
            raise BadInput(f"{files_of} is no folder")
        with suppress(OSError, ValidationError):
            self.version = WeightVersion.model_validate_json((self.folder / _KEPT).read_bytes())

    @override
    def require_fit(self, layout: WeightLayout) -> None:
        here: dict[str, torch.Tensor] = {}
        with suppress(DataError):  # what is gone or damaged is made anew
            here = self._current()
        if here:
            require_same(layout.tensors, [sent_shape(name, tensor, None) for name, tensor in here.items()])

    @override
    def begin(self, layout: WeightLayout) -> None:
        self._remove_others()
        self._partial.mkdir()
        self._copy_other_files()
        planned = {one.name: torch.empty(one.shape, dtype=DTYPES[one.dtype], device="meta") for one in layout.tensors}
        files = _shared_out(planned)
        if len(files) > 1:
            index = {
                "metadata": {"total_size": layout.raw_bytes},
                "weight_map": {name: file for file, inside in files.items() for name in inside},
            }
            (self._partial / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        new: dict[str, torch.Tensor] = {}
        for file, inside in files.items():
            new |= _new_file(self._partial / file, {name: planned[name] for name in inside})
        self._new = new

    @override
    def commit(self, version: WeightVersion) -> None:
        self._new = {}
        said = version.model_dump(mode="json", include={"number", "step", "time", "stream", "publisher"})
        (self._partial / SAID).write_text(json.dumps({**said, "hash": version.result}, indent=2) + "\n", "utf-8")
        (self._partial / _KEPT).write_text(line_of(version), "utf-8")
        for path in [*self._partial.iterdir(), self._partial]:
            fsync_path(path)
        own, link = self._beside(str(version.number)), self._beside("link")
        self._partial.rename(own)
        link.unlink(missing_ok=True)
        link.symlink_to(own.name)
        link.rename(self.folder)
        fsync_path(self.folder.parent)
        self._mapped = {}
        self.version = version

    @override
    def drop(self) -> None:
        super().drop()
        shutil.rmtree(self._partial, ignore_errors=True)

    @override
    def close(self) -> None:
        self._mapped = {}
        self._held.close()

    def _beside(self, what: str) -> Path:
        return self.folder.with_name(f".{self.folder.name}.{what}")

    @override
    def _current(self) -> dict[str, torch.Tensor]:
        """Of the files that are there. DataError: they cannot be read."""
        if not self._mapped:
            for path in sorted(self.folder.glob("*.safetensors")):
                self._mapped |= _mapped(path, shared=False)
        return self._mapped

    def _remove_others(self) -> None:
        """What an earlier process left, and the version before the one that is there: engines may still read that."""
        current, own = self.folder.resolve().name, f".{self.folder.name}."
        for path in self.folder.parent.iterdir():
            is_own = path.name.startswith(own) and path.name.removeprefix(own).isdecimal()
            if path.name != current and (is_own or path == self._partial):
                shutil.rmtree(path)

    def _copy_other_files(self) -> None:
        """Such as the config and the tokenizer."""
        for folder in (self.folder, self._files_of):
            for path in folder.iterdir() if folder is not None and folder.exists() else ():
                if path.is_file() and not _WEIGHTS.fullmatch(path.name) and path.name not in _OF_OTHER_WEIGHTS:
                    shutil.copy2(path, self._partial / path.name)


def _shared_out(planned: Mapping[str, torch.Tensor]) -> dict[str, list[str]]:
    """Names of tensors by file."""
    files, used = [list[str]()], 0
    # So each tensor begins at a multiple of its elements' size.
    for name, tensor in sorted(planned.items(), key=lambda one: -one[1].itemsize):
        if files[-1] and used + tensor.nbytes > FILE_BYTES:
            files.append([])
            used = 0
        files[-1].append(name)
        used += tensor.nbytes
    if len(files) == 1:
        return {"model.safetensors": files[0]}
    return {f"model-{at:05}-of-{len(files):05}.safetensors": inside for at, inside in enumerate(files, 1)}


def _new_file(path: Path, planned: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A file for these tensors, which are mapped to be written. OSError: there is no room for it."""
    header = safetensors_header(planned)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.flush()
        size = file.tell() + sum(tensor.nbytes for tensor in planned.values())
        os.posix_fallocate(file.fileno(), 0, size)  # a full disk would end the process where a mapping is written
    return _mapped(path, shared=True)


def _mapped(path: Path, *, shared: bool) -> dict[str, torch.Tensor]:
    """The tensors of a file. shared: what is written to them is written to it. DataError: it is none of this
    module's."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _MOST_HEADER_BYTES:
                raise ValueError("its header is too long")
            entries = json.loads(file.read(length))
            size = os.fstat(file.fileno()).st_size
        whole = torch.from_file(str(path), shared=shared, size=size, dtype=torch.uint8)
        named = {name: dtype for dtype, name in DTYPE_NAMES.items()}
        found: dict[str, torch.Tensor] = {}
        for name, entry in entries.items():
            if name != "__metadata__":
                begin, end = (8 + length + offset for offset in entry["data_offsets"])
                found[name] = whole[begin:end].view(named[entry["dtype"]]).view(entry["shape"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise DataError(f"{path} cannot be read: {error_line(error)}") from None
    return found
