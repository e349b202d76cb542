"""Loading the native module, once, and only if it was built for the torch that is here."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from geocomm.core.environment import cpu_level, log_is_json, log_level, tensor_threads
from geocomm.core.errors import CLASS_OF_CODE, InternalError, VersionMismatchError
from geocomm.core.message_log import fields_of_process, logger, write_through

if TYPE_CHECKING:
    from types import ModuleType

OLDEST_TORCH = "2.11"
NEWEST_TESTED_TORCH = "2.15"
"""A newer one is warned of."""


def rdma_plugin() -> str:
    """Where the library is that uses UCX, if this geocomm was built with UCX's headers."""
    return str(Path(__file__).parents[1] / "_bin" / "libgeocomm_ucx.so")


def _minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


@functools.cache
def native() -> ModuleType:
    """The module geocomm._C.

    Raises VersionMismatchError for another torch minor version than it was built for (loading it would crash),
    InternalError where the installation is broken, and InvalidArgumentError for a GEOCOMM_CPU, GEOCOMM_THREADS or
    GEOCOMM_LOG that cannot be.
    """
    import torch

    try:
        from geocomm._build_info import TORCH_VERSION
    except ImportError as error:
        raise InternalError(
            "geocomm's native module is not built; install a wheel of geocomm, or run `make build` in its source tree"
        ) from error
    here = ".".join(torch.__version__.split(".")[:2])
    if here != TORCH_VERSION:
        raise VersionMismatchError(
            f"this geocomm was built for torch {TORCH_VERSION}, but torch {torch.__version__} is installed; install "
            f"the wheel for torch {here}, or rebuild it in its source tree: pip install --no-build-isolation "
            "--force-reinstall --no-deps ."
        )
    if _minor(TORCH_VERSION) > _minor(NEWEST_TESTED_TORCH):
        logger().warning(
            f"geocomm was tested with torch {OLDEST_TORCH} to {NEWEST_TESTED_TORCH}, and this is torch "
            f"{torch.__version__}, in which parts of torch that it uses may have changed. `make torch-matrix "
            f"TORCH_MATRIX={torch.__version__.split('+')[0]}` in its source tree runs its tests with it"
        )
    try:
        from geocomm import _C
    except ImportError as error:
        raise InternalError(f"geocomm's native module does not load: {error}; reinstall geocomm") from error
    _C.set_error_classes(CLASS_OF_CODE)
    _C.set_log_level(log_level())
    if log_is_json():
        _C.set_log_json(fields_of_process())
    write_through(_C.log)
    _C.set_codec_threads(tensor_threads())
    if level := cpu_level():
        _C.set_cpu_level(level)
    return _C
