"""geocomm: torch.distributed across distant sites.

`torch.distributed.init_process_group("geocomm")` needs no import of this package; it holds the options and the tools
around the backend. Importing it loads neither torch nor the native library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from geocomm.codec import codec_names, codec_presets, compress, compress_bound, decompress
    from geocomm.errors import (
        AbortedError,
        AuthFailedError,
        CommTimeoutError,
        CorruptDataError,
        DstTooSmallError,
        GeocommError,
        InternalError,
        InvalidArgumentError,
        NetworkError,
        PeerLostError,
        ReplicaMismatchError,
        UnsupportedError,
        VersionMismatchError,
    )
    from geocomm.gradients.ddp_hook import ddp_hook
    from geocomm.gradients.feedback_state import merge_feedback
    from geocomm.gradients.fsdp_hook import fsdp_hook
    from geocomm.gradients.low_rank import power_sgd_hook
    from geocomm.gradients.momentum import dgc_hook
    from geocomm.options import Options
    from geocomm.policy import refresh_links
    from geocomm.replica_check import check_replicas
    from geocomm.telemetry import last_error, stats
    from geocomm.topology import device_mesh

_MODULE_OF = {
    "Options": "options",
    "compress": "codec",
    "decompress": "codec",
    "compress_bound": "codec",
    "codec_names": "codec",
    "codec_presets": "codec",
    "stats": "telemetry",
    "last_error": "telemetry",
    "refresh_links": "policy",
    "device_mesh": "topology",
    "check_replicas": "replica_check",
    "ddp_hook": "gradients.ddp_hook",
    "fsdp_hook": "gradients.fsdp_hook",
    "dgc_hook": "gradients.momentum",
    "power_sgd_hook": "gradients.low_rank",
    "merge_feedback": "gradients.feedback_state",
    "GeocommError": "errors",
    "InvalidArgumentError": "errors",
    "UnsupportedError": "errors",
    "VersionMismatchError": "errors",
    "AuthFailedError": "errors",
    "CorruptDataError": "errors",
    "DstTooSmallError": "errors",
    "CommTimeoutError": "errors",
    "PeerLostError": "errors",
    "NetworkError": "errors",
    "ReplicaMismatchError": "errors",
    "AbortedError": "errors",
    "InternalError": "errors",
}

__all__ = [
    "AbortedError",
    "AuthFailedError",
    "CommTimeoutError",
    "CorruptDataError",
    "DstTooSmallError",
    "GeocommError",
    "InternalError",
    "InvalidArgumentError",
    "NetworkError",
    "Options",
    "PeerLostError",
    "ReplicaMismatchError",
    "UnsupportedError",
    "VersionMismatchError",
    "__version__",
    "check_replicas",
    "codec_names",
    "codec_presets",
    "compress",
    "compress_bound",
    "ddp_hook",
    "decompress",
    "device_mesh",
    "dgc_hook",
    "fsdp_hook",
    "last_error",
    "merge_feedback",
    "power_sgd_hook",
    "refresh_links",
    "stats",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for, and only then (PEP 562)."""
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"geocomm.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'geocomm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
