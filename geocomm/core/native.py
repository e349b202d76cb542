"""Loading the native module, once, and only if it was built for the torch that is here."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

from geocomm.core.bindings import Binding, TorchBuild, fitting_binding, installed_bindings, why_none_fits
from geocomm.core.environment import cpu_level, gpu_batches, log_is_json, log_level, tensor_threads
from geocomm.core.errors import CLASS_OF_CODE, InternalError, VersionMismatchError
from geocomm.core.message_log import fields_of_process, logger, write_through
from geocomm.core.once import Once

if TYPE_CHECKING:
    from types import ModuleType

OLDEST_TORCH = (2, 11)
NEWEST_TESTED_TORCH = (2, 15)
"""A newer one is warned of."""
_MODULE = "geocomm._C"


def rdma_plugin() -> str:
    """Where the library is that uses UCX, if this geocomm was built with UCX's headers."""
    return str(Path(__file__).parents[1] / "_bin" / "libgeocomm_ucx.so")


@Once
def native() -> ModuleType:
    """The module geocomm._C, of the binding for the torch that is here.

    Raises VersionMismatchError where this geocomm has none for it, InternalError where the installation is broken, and
    InvalidArgumentError for a GEOCOMM_CPU, GEOCOMM_GPU_BATCHES, GEOCOMM_THREADS or GEOCOMM_LOG that cannot be.
    """
    import torch

    here, bindings = TorchBuild(torch.__version__, torch.version.cuda), installed_bindings()
    binding = fitting_binding(here, bindings)
    if binding is None:
        raise (VersionMismatchError if bindings else InternalError)(why_none_fits(here, bindings))
    if binding.torch > NEWEST_TESTED_TORCH:
        logger().warning(
            f"geocomm was tested with torch {_dotted(OLDEST_TORCH)} to {_dotted(NEWEST_TESTED_TORCH)}, and this is "
            f"torch {torch.__version__}, in which parts of torch that it uses may have changed. `make torch-matrix "
            f"TORCH_MATRIX={torch.__version__.split('+')[0]}` in its source tree runs its tests with it"
        )
    module = _load(binding)
    module.set_error_classes(CLASS_OF_CODE)
    module.set_log_level(log_level())
    if log_is_json():
        module.set_log_json(fields_of_process())
    write_through(module.log)
    module.set_codec_threads(tensor_threads())
    if level := cpu_level():
        module.set_cpu_level(level)
    module.use_device_batches(gpu_batches())
    return module


def _load(binding: Binding) -> ModuleType:
    """As `import geocomm._C` would, were the file in the package's folder."""
    if loaded := sys.modules.get(_MODULE):
        return loaded
    spec = spec_from_file_location(_MODULE, binding.file)
    if spec is None or spec.loader is None:
        raise InternalError(f"{binding.file} is no native module; reinstall geocomm")
    try:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise InternalError(
            f"geocomm's native module for {binding} does not load: {error}; reinstall geocomm"
        ) from error
    sys.modules[_MODULE] = module
    return module


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
