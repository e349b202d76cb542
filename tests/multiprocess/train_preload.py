"""For the process that the ranks of a training are forked from: what the driver imports late, nothing of geocomm.

DeepSpeed compiles an operator at its first use, which takes a minute; the forked ranks find it loaded. Run as a program
(make test), this compiles it before any other process may.
"""

from __future__ import annotations

import time
from pathlib import Path

import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401 - and with it PyTorch's compiler
import pydantic  # noqa: F401
import transformers.models.deepseek_v3.modeling_deepseek_v3  # noqa: F401
import typer  # noqa: F401
import yaml  # noqa: F401
from deepspeed.comm.torch import build_shm_op
from torch.utils.cpp_extension import _get_build_directory

_STALE_LOCK_S = 0 if __name__ == "__main__" else 300


def _drop_stale_lock() -> None:
    """Of a build that was killed: all later ones would wait for it, for ever."""
    lock = Path(_get_build_directory("deepspeed_shm_comm", verbose=False)) / "lock"
    if lock.exists() and time.time() - lock.stat().st_mtime >= _STALE_LOCK_S:
        lock.unlink(missing_ok=True)


_drop_stale_lock()
build_shm_op()
