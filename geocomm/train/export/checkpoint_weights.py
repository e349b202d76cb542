"""The weights in a checkpoint of `geocomm train`, which may lie on several disks. Needs torch, and no DeepSpeed.

Nothing that is in a file runs: it is mapped, and unpickled with no class but known ones.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from geocomm.core.bad_input import BadInput
from geocomm.train.export.weights import DTYPES, LazyWeights, Parts
from geocomm.train.runs.run_folder import ENGINE_FOLDER, MANIFEST

_FORMAT = 1
_FIELDS = ("step", "world_size", "zero_stage", "precision", "shard_ranks", "sites", "model")


class CheckpointCopies:
    """The complete folders that the machines of a run wrote at one step.

    Ranks that hold the same shard write it once for each disk. So folders may have files in common, and each may lack
    some.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        """Raises BadInput for a folder that is no complete checkpoint, and for folders of different ones."""
        self._manifests = {folder: _manifest(folder) for folder in folders}
        self._first = folders[0]
        self.manifest = self._manifests[self._first]
        for folder, manifest in self._manifests.items():
            names = self.manifest.keys() | manifest.keys()
            # Local steps join sites of different sizes: each has cut what all of them share into as many shards. Each
            # disk's checkpoint has an id of its own.
            differ = {name for name in names if self.manifest.get(name) != manifest.get(name)} - {"shard_ranks", "id"}
            if differ:
                raise BadInput(
                    f"{self._first} and {folder} are not of one checkpoint: they differ in {', '.join(sorted(differ))}"
                    "; give the folders that the machines of one run wrote at the same step"
                )

    def common_file(self, name: str) -> Path:
        """A file of DeepSpeed that every machine wrote. Raises BadInput if it is nowhere."""
        found = self._find(name, list(self._manifests))
        if found is None:
            raise BadInput(
                f"{self._first / ENGINE_FOLDER / name} is missing, which every machine of the run wrote: copy the "
                "checkpoint again, or use another one"
            )
        return found

    def shard_files(self, *patterns: str) -> list[tuple[Path, ...]]:
        """The files of each partition, in order; patterns: their names, with {} for the partition.

        Replicas hold the same shard, so one of them is enough. Raises BadInput that names what nobody has.
        """
        refusals: list[tuple[int, BadInput]] = []
        for count in sorted({manifest["shard_ranks"] for manifest in self._manifests.values()}):
            folders = [folder for folder, manifest in self._manifests.items() if manifest["shard_ranks"] == count]
            found = [[self._find(pattern.format(rank), folders) for pattern in patterns] for rank in range(count)]
            missing = [
                (rank, pattern.format(rank))
                for rank, files in enumerate(found)
                for pattern, file in zip(patterns, files, strict=True)
                if file is None
            ]
            if not missing:
                return [tuple(file for file in files if file is not None) for files in found]
            refusals.append((len(missing), self._missing(folders[0], *missing[0], count, len(missing))))
        raise min(refusals, key=lambda one: one[0])[1]

    def _find(self, name: str, folders: Sequence[Path]) -> Path | None:
        paths = (folder / ENGINE_FOLDER / name for folder in folders)
        return next((path for path in paths if path.is_file()), None)

    def _missing(self, folder: Path, rank: int, name: str, count: int, missing: int) -> BadInput:
        more = f" (and {missing - 1} more)" if missing > 1 else ""
        return BadInput(
            f"{folder / ENGINE_FOLDER / name} is missing{more}; {self._writer(rank, count)} wrote it: copy it from "
            "that machine's copy of the checkpoint, or give that copy with --shards"
        )

    def _writer(self, rank: int, count: int) -> str:
        """Who wrote shard `rank` of `count`."""
        sites: dict[str, int] = self.manifest["sites"]
        if count < self.manifest["world_size"]:
            same = [site for site, ranks in sites.items() if ranks == count]
            return f"rank {rank} of those at site {' or '.join(same or sites)}, counted from 0,"
        of_rank = self.manifest.get("site_of_rank")  # version 0.2.0 did not write it
        return f"rank {rank}" if of_rank is None else f"rank {rank} of site {of_rank[rank]}"


def _manifest(folder: Path) -> dict[str, Any]:
    if folder.name.startswith("."):
        raise BadInput(f"{folder} is being written, or was left by a crash; give a folder step-… beside it")
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise BadInput(
            f"{folder} is no checkpoint of geocomm train: it has no {MANIFEST}; give a folder checkpoints/step-… of "
            "a run"
        ) from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read ({error}); copy the checkpoint again, or use another one") from None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        kind = found.get("format") if isinstance(found, dict) else None
        raise BadInput(
            f"{path} has format {kind!r}, and this version of geocomm reads format {_FORMAT}; read the checkpoint with "
            "the version that wrote it"
        )
    if absent := [name for name in _FIELDS if name not in found]:
        raise BadInput(f"{path} lacks {', '.join(absent)}; copy the checkpoint again, or use another one")
    return found


# Where the float32 masters lie in DeepSpeed's files. A master is what the optimizer updates; what the model computes
# with is its rounding. The layouts:
#
# - ZeRO 1 and 2: the parameters of a group are one vector, one after another, with gaps that align them. It is cut into
#   equal partitions. What fills up the last ones is not saved.
# - ZeRO 3: each parameter is cut by itself, and its last partitions are filled up. In a partition the parameters of a
#   group follow each other.
# - ZeRO 0 in 16 bits: a copy of each parameter, without its name.
#
# Nothing here copies: all tensors are views of mapped files.

Shapes = Mapping[str, Sequence[int]]
"""The shapes of one group's parameters by name, in the order of the group."""
Shard = Sequence[torch.Tensor]
"""What one partition has of each group, as 1-D tensors."""


def masters_cut_by_group(
    groups: Sequence[Shapes], gaps: Sequence[Sequence[int]], shards: Sequence[Shard]
) -> dict[str, Parts]:
    """Masters under ZeRO 1 and 2. gaps: elements after each parameter of a group; shards: of all partitions, in order.

    Raises BadInput if they do not fit each other.
    """
    _require_groups(groups, shards)
    found: dict[str, Parts] = {}
    for index, (shapes, behind) in enumerate(zip(groups, gaps, strict=True)):
        pieces = [shard[index] for shard in shards]
        offset = 0
        ends = list(itertools.accumulate(piece.numel() for piece in pieces))
        for (name, shape), gap in zip(shapes.items(), behind, strict=True):
            stop = offset + math.prod(shape)
            touched = range(bisect.bisect_right(ends, offset), min(bisect.bisect_left(ends, stop) + 1, len(ends)))
            starts = [(pieces[one], ends[one] - pieces[one].numel()) for one in touched]
            found[name] = Parts([piece[max(offset - start, 0) : stop - start] for piece, start in starts], shape)
            offset = stop + gap
        _require_fit(index, got=ends[-1], expected=offset)
    return found


def masters_cut_by_parameter(groups: Sequence[Shapes], shards: Sequence[Shard]) -> dict[str, Parts]:
    """Masters under ZeRO 3, otherwise as `masters_cut_by_group`."""
    _require_groups(groups, shards)
    found: dict[str, Parts] = {}
    for index, shapes in enumerate(groups):
        offset = 0
        for name, shape in shapes.items():
            stop = offset + partition_elems(shape, len(shards))
            found[name] = cut_parameter([shard[index][offset:stop] for shard in shards], shape)
            offset = stop
        for shard in shards:
            _require_fit(index, got=shard[index].numel(), expected=offset)
    return found


def partition_elems(shape: Sequence[int], partitions: int) -> int:
    """How many elements each partition has of a parameter at ZeRO 3, filled up if need be."""
    return -(-math.prod(shape) // partitions)


def cut_parameter(pieces: Sequence[torch.Tensor], shape: Sequence[int]) -> Parts:
    """A parameter from what each partition has of it at ZeRO 3, without what the last ones are filled up with."""
    views: list[torch.Tensor] = []
    missing = math.prod(shape)
    for piece in pieces:
        views.append(piece[:missing])
        missing -= views[-1].numel()
    return Parts(views, shape)


def masters_not_cut(shapes: Shapes, groups: Sequence[Sequence[torch.Tensor]]) -> dict[str, Parts]:
    """Masters under ZeRO 0 in 16 bits. shapes: of all parameters, in the model's order; groups: their masters.

    The driver's optimizer has the matrices in its first group, and what has fewer dimensions in the second. Raises
    BadInput for other groups.
    """
    names = [
        *(name for name, shape in shapes.items() if len(shape) >= 2),
        *(name for name, shape in shapes.items() if len(shape) < 2),
    ]
    masters = [master for group in groups for master in group]
    if [tuple(shapes[name]) for name in names] != [tuple(master.shape) for master in masters]:
        raise BadInput(
            f"the checkpoint has {len(masters)} float32 masters for {len(names)} parameters, or of other shapes: its "
            "optimizer was not that of geocomm train; give no dtype, to export the weights as they were trained"
        )
    return {name: Parts([master], master.shape) for name, master in zip(names, masters, strict=True)}


def _require_groups(groups: Sequence[Shapes], shards: Sequence[Shard]) -> None:
    for shard in shards:
        if len(shard) != len(groups):
            raise _misfit(f"{len(shard)} parameter groups", str(len(groups)))


def _require_fit(group: int, *, got: int, expected: int) -> None:
    if got != expected:
        raise _misfit(f"{got} elements of parameter group {group}", str(expected))


def _misfit(got: str, expected: str) -> BadInput:
    return BadInput(
        f"the optimizer's files of the checkpoint hold {got}, and the model's file tells of {expected}: they are not "
        "of one checkpoint; copy it again, or use another one"
    )


class _Unused:
    """Stands for an object of DeepSpeed that weights do not depend on: none of DeepSpeed's code runs."""

    def __init__(self, *arguments: object) -> None:
        pass


_STAND_INS: dict[str, type] = {
    "builtins.getattr": _Unused,  # with it Python before 3.11.4 pickles members of enumerations
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler": _Unused,
    "deepspeed.runtime.fp16.loss_scaler.LossScaler": _Unused,
    "deepspeed.runtime.zero.config.ZeroStageEnum": _Unused,
    "deepspeed.utils.tensor_fragment.fragment_address": _Unused,
}


def open_checkpoint(folder: Path, more: Sequence[Path] = ()) -> CheckpointWeights:
    """Open a folder `step-…`; more: those that other machines of the run wrote at that step.

    Raises BadInput for what is no complete checkpoint of the driver, and names the file that is missing.
    """
    return CheckpointWeights(CheckpointCopies([folder, *more]))


class CheckpointWeights:
    """A checkpoint whose model can be read.

    At ZeRO 0 to 2 the model's file has what the model computes with, and the optimizer's files are needed only for the
    masters of 16 bits. At ZeRO 3 the weights are in the masters alone. In a run with local steps all of these hold the
    anchor, which is the same at every site.
    """

    def __init__(self, copies: CheckpointCopies) -> None:
        """Raises BadInput: see `open_checkpoint`."""
        self.manifest = copies.manifest
        self._copies = copies
        self._stage = self.manifest["zero_stage"]
        precision = self.manifest["precision"]
        if self._stage not in range(4) or precision not in DTYPES:
            raise BadInput(
                f"the checkpoint has ZeRO {self._stage!r} and precision {precision!r}, which this version of geocomm "
                "does not know; read it with the version that wrote it"
            )
        self._computed = DTYPES[precision]
        self._optimizer_file = f"{'bf16_' if precision == 'bf16' else ''}zero_pp_rank_{{}}_mp_rank_00_optim_states.pt"
        if self._stage == 3:
            self._files = copies.shard_files("zero_pp_rank_{}_mp_rank_00_model_states.pt", self._optimizer_file)
            file = self._files[0][0]
        else:
            file = copies.common_file("mp_rank_00_model_states.pt")
        self._model = _State(file, _load_mapped(file))
        self._module: dict[str, torch.Tensor] = self._model["module"]

    def weights(self, dtype: torch.dtype | None = None) -> Mapping[str, torch.Tensor]:
        """The tensors of the model's state dict, buffers included, in its order; see `LazyWeights`.

        dtype: None for what the model computes with; else a floating-point type that the masters are rounded to, and
        the buffers with them: torch.float32 for the masters themselves. Raises BadInput for files that are missing or
        damaged.
        """
        if self._stage == 3:
            found = self._with_shared(self._partitioned())
        else:
            found = {name: Parts([value], value.shape) for name, value in self._module.items()}
            if self._computed != torch.float32 and dtype not in (None, self._computed):
                found |= self._with_shared(self._masters())
        if absent := [name for name in self._module if name not in found]:
            raise BadInput(
                f"{self._model.path} tells of {', '.join(absent[:3])}, which no file of the checkpoint holds; copy the "
                "checkpoint again, or use another one"
            )
        return LazyWeights({name: found[name].reader(dtype or value.dtype) for name, value in self._module.items()})

    def _masters(self) -> dict[str, Parts]:
        """The masters of the trained parameters, at ZeRO 0 to 2 in 16 bits."""
        if self._stage == 0:
            optimizer = _State(self._model.path, self._model["optimizer"])
            buffers = set(self._model["buffer_names"])
            names: dict[int, str] = {}
            for name, value in self._module.items():
                if name not in buffers:
                    names.setdefault(value.data_ptr(), name)  # the first of a parameter that has several
            shapes = {name: self._module[name].shape for name in names.values()}
            return masters_not_cut(shapes, optimizer["fp32_groups"])
        states = self._optimizers([file for (file,) in self._copies.shard_files(self._optimizer_file)])
        return masters_cut_by_group(
            self._model["param_shapes"],
            states[0]["param_alignment_paddings"],
            [state["single_partition_of_fp32_groups"] for state in states],
        )

    def _partitioned(self) -> dict[str, Parts]:
        """Trained and frozen parameters and buffers, at ZeRO 3."""
        states = self._optimizers([optimizer for _, optimizer in self._files])
        found = masters_cut_by_parameter(self._model["param_shapes"], [state["fp32_flat_groups"] for state in states])
        if frozen := self._model["frozen_param_shapes"]:
            fragments = [_State(file, _load_mapped(file))["frozen_param_fragments"] for file, _ in self._files]
            found |= {name: cut_parameter([one[name] for one in fragments], shape) for name, shape in frozen.items()}
        buffers = {name: self._module[name] for name in self._model["buffer_names"]}
        return found | {name: Parts([value], value.shape) for name, value in buffers.items()}

    def _optimizers(self, files: Sequence[Path]) -> list[_State]:
        """The state of each partition; BadInput where one is of another number of partitions."""
        states = [_State(file, _State(file, _load_mapped(file))["optimizer_state_dict"]) for file in files]
        for state in states:
            counts = state["partition_count"]
            if set(counts if isinstance(counts, list) else [counts]) != {len(files)}:
                raise BadInput(
                    f"{state.path} is one of {counts} shards, and the checkpoint's manifest tells of {len(files)}; "
                    "copy the checkpoint again, or use another one"
                )
        return states

    def _with_shared(self, found: dict[str, Parts]) -> dict[str, Parts]:
        """What was found, under all names that a parameter has (tied embeddings).

        Only rank 0 of a run writes down which they are. But what had the same memory has it in the file too.
        """
        others: dict[str, Parts] = {}
        for name in self._module.keys() - found.keys() - set(self._model["buffer_names"]):
            value = self._module[name]
            alike = (one for one in found if self._module[one].dtype == value.dtype)
            one = next((one for one in alike if value.is_set_to(self._module[one])), None)
            if one is not None:
                others[name] = found[one]
        return found | others


class _State:
    """A dictionary in a file of DeepSpeed."""

    def __init__(self, path: Path, fields: Mapping[str, Any]) -> None:
        self.path = path
        self._fields = fields

    def __getitem__(self, name: str) -> Any:
        """Raises BadInput where DeepSpeed wrote no such field."""
        if name not in self._fields:
            raise BadInput(
                f"{self.path} lacks '{name}': it was written by another version of DeepSpeed, or by other options than "
                "geocomm train knows how to read"
            )
        return self._fields[name]


def _load_mapped(path: Path) -> dict[str, Any]:
    """What `torch.save` wrote to `path`. Its tensors are views of the mapped file: they need no memory, and must not be
    written to.

    Raises BadInput for a file that is damaged, of another format, or holds objects of other classes.
    """
    if path.is_file() and not zipfile.is_zipfile(path):
        raise BadInput(
            f"{path} is cut off, or was written with DeepSpeed's option checkpoint_serialization off: copy the "
            "checkpoint again, or use one that was written without that option"
        )
    with safe_globals([(stand_in, name) for name, stand_in in _STAND_INS.items()]):
        try:
            found: Any = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except pickle.UnpicklingError as error:
            raise _refused(path) from error
        except (OSError, RuntimeError, ValueError, EOFError, LookupError, TypeError, AttributeError) as error:
            raise _unreadable(path, error) from error
    if not isinstance(found, dict):
        raise BadInput(f"{path} holds no state of DeepSpeed; copy the checkpoint again, or use an earlier one")
    return found


def _refused(path: Path) -> BadInput:
    """The refusal of a file whose pickle has more than tensors and known classes."""
    try:
        names = sorted(get_unsafe_globals_in_checkpoint(str(path)))
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, LookupError) as error:
        return _unreadable(path, error)
    if not names:
        return BadInput(f"{path} holds a damaged pickle; copy the checkpoint again, or use an earlier one")
    return BadInput(
        f"{path} holds objects that geocomm does not unpickle, since that may run code: {', '.join(names)}; only "
        "checkpoints of geocomm train are read"
    )


def _unreadable(path: Path, error: Exception) -> BadInput:
    words = " ".join(str(error).split()).split(". ")[0] or type(error).__name__
    return BadInput(
        f"{path} cannot be read ({words}); it is damaged, or was not written by geocomm train: copy the checkpoint "
        "again, or use an earlier one"
    )
