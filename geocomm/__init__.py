"""geocomm: torch.distributed across distant sites.

`torch.distributed.init_process_group("geocomm")` needs no import of this package; it holds the options and the tools
around the backend. Importing it loads neither torch nor the native library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from geocomm._version import __version__ as __version__

if TYPE_CHECKING:  # `as`: the form by which type checkers take a name for public
    from geocomm.codecs.tensor_codec import apply_delta as apply_delta
    from geocomm.codecs.tensor_codec import codec_names as codec_names
    from geocomm.codecs.tensor_codec import codec_presets as codec_presets
    from geocomm.codecs.tensor_codec import compress as compress
    from geocomm.codecs.tensor_codec import compress_bound as compress_bound
    from geocomm.codecs.tensor_codec import decompress as decompress
    from geocomm.codecs.tensor_codec import make_delta as make_delta
    from geocomm.core.errors import AbortedError as AbortedError
    from geocomm.core.errors import AuthenticationError as AuthenticationError
    from geocomm.core.errors import CorruptDataError as CorruptDataError
    from geocomm.core.errors import DataError as DataError
    from geocomm.core.errors import DriverError as DriverError
    from geocomm.core.errors import GeocommError as GeocommError
    from geocomm.core.errors import InternalError as InternalError
    from geocomm.core.errors import InvalidArgumentError as InvalidArgumentError
    from geocomm.core.errors import NetworkError as NetworkError
    from geocomm.core.errors import OperationTimeoutError as OperationTimeoutError
    from geocomm.core.errors import OutputTooSmallError as OutputTooSmallError
    from geocomm.core.errors import PeerLostError as PeerLostError
    from geocomm.core.errors import ReplicaMismatchError as ReplicaMismatchError
    from geocomm.core.errors import UnsupportedError as UnsupportedError
    from geocomm.core.errors import VersionMismatchError as VersionMismatchError
    from geocomm.core.link_table import Links as Links
    from geocomm.core.options import Options as Options
    from geocomm.data.site_dataset import SiteDataset as SiteDataset
    from geocomm.group.backend.policy_epochs import refresh_links as refresh_links
    from geocomm.group.backend.sites import Sites as Sites
    from geocomm.group.backend.sites import device_mesh as device_mesh
    from geocomm.group.backend.sites import sites as sites
    from geocomm.metrics.counters import last_error as last_error
    from geocomm.metrics.counters import stats as stats
    from geocomm.metrics.logs import op_log as op_log
    from geocomm.metrics.logs import round_log as round_log
    from geocomm.metrics.training import report_step as report_step
    from geocomm.sync.gradients.ddp_hook import ddp_hook as ddp_hook
    from geocomm.sync.gradients.feedback_state import reshard_feedback as reshard_feedback
    from geocomm.sync.gradients.fsdp_hook import fsdp_hook as fsdp_hook
    from geocomm.sync.gradients.gradient_hook import GradientHook as GradientHook
    from geocomm.sync.gradients.hook_settings import HookSettings as HookSettings
    from geocomm.sync.gradients.replica_check import check_replicas as check_replicas
    from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedSites as SimulatedSites
    from geocomm.sync.local_steps.local_steps import LocalSteps as LocalSteps
    from geocomm.sync.local_steps.local_steps import local_steps as local_steps
    from geocomm.sync.local_steps.settings.local_settings import LocalSettings as LocalSettings
    from geocomm.sync.local_steps.settings.local_settings import Nesterov as Nesterov
    from geocomm.weights.publisher import WeightPublisher as WeightPublisher
    from geocomm.weights.reader import WeightReader as WeightReader

# The one list of public names, each with its module; a test compares what type checkers are told above with it.
_MODULE_OF = {
    "Options": "core.options",
    "compress": "codecs.tensor_codec",
    "decompress": "codecs.tensor_codec",
    "compress_bound": "codecs.tensor_codec",
    "make_delta": "codecs.tensor_codec",
    "apply_delta": "codecs.tensor_codec",
    "codec_names": "codecs.tensor_codec",
    "codec_presets": "codecs.tensor_codec",
    "stats": "metrics.counters",
    "last_error": "metrics.counters",
    "op_log": "metrics.logs",
    "round_log": "metrics.logs",
    "report_step": "metrics.training",
    "refresh_links": "group.backend.policy_epochs",
    "device_mesh": "group.backend.sites",
    "sites": "group.backend.sites",
    "Sites": "group.backend.sites",
    "check_replicas": "sync.gradients.replica_check",
    "ddp_hook": "sync.gradients.ddp_hook",
    "fsdp_hook": "sync.gradients.fsdp_hook",
    "HookSettings": "sync.gradients.hook_settings",
    "reshard_feedback": "sync.gradients.feedback_state",
    "GradientHook": "sync.gradients.gradient_hook",
    "local_steps": "sync.local_steps.local_steps",
    "LocalSteps": "sync.local_steps.local_steps",
    "LocalSettings": "sync.local_steps.settings.local_settings",
    "Nesterov": "sync.local_steps.settings.local_settings",
    "SimulatedSites": "sync.local_steps.fixed.simulated_rounds",
    "Links": "core.link_table",
    "SiteDataset": "data.site_dataset",
    "WeightPublisher": "weights.publisher",
    "WeightReader": "weights.reader",
    "GeocommError": "core.errors",
    "InvalidArgumentError": "core.errors",
    "UnsupportedError": "core.errors",
    "VersionMismatchError": "core.errors",
    "AuthenticationError": "core.errors",
    "CorruptDataError": "core.errors",
    "OutputTooSmallError": "core.errors",
    "OperationTimeoutError": "core.errors",
    "PeerLostError": "core.errors",
    "NetworkError": "core.errors",
    "ReplicaMismatchError": "core.errors",
    "DataError": "core.errors",
    "AbortedError": "core.errors",
    "DriverError": "core.errors",
    "InternalError": "core.errors",
}

__all__ = sorted(["__version__", *_MODULE_OF])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import what is asked for, and only then (PEP 562)."""
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"geocomm.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'geocomm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
