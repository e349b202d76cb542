"""Reads what DeepSpeed saved without running what is in it: by mapping the file, with no class but known ones.

Imports torch, not DeepSpeed.
"""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from geocomm.core.bad_input import BadInput


class _Unused:
    """Stands for an object of DeepSpeed that weights do not depend on: none of DeepSpeed's code runs."""


_STAND_INS: dict[str, type] = {
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler": _Unused,
    "deepspeed.runtime.fp16.loss_scaler.LossScaler": _Unused,
    "deepspeed.runtime.zero.config.ZeroStageEnum": int,
    "deepspeed.utils.tensor_fragment.fragment_address": _Unused,
}


def load_mapped(path: Path) -> dict[str, Any]:
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
