"""The weights in a checkpoint of `geocomm train`, read without DeepSpeed. Imports torch.

Nothing that is in a file runs: it is mapped, and unpickled with no class but known ones.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from geocomm.core.bad_input import BadInput
from geocomm.train.export.checkpoint_copies import CheckpointCopies
from geocomm.train.export.weights import DTYPES, LazyWeights, Parts
from geocomm.train.export.zero_shards import (
    cut_parameter,
    masters_cut_by_group,
    masters_cut_by_parameter,
    masters_not_cut,
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
