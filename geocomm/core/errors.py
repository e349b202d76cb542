"""Exceptions of geocomm: one class per status code of the native core, each also a torch.distributed error.

Code that catches torch's `DistNetworkError` or `DistBackendError` catches these too. Out of autograd's backward (DDP)
only torch's own class survives, without attributes: the message stands alone, and `geocomm.last_error()` has
the record.
"""

from __future__ import annotations

from torch.distributed import DistBackendError, DistError, DistNetworkError


class GeocommError(DistError):
    """Base of all errors of geocomm. An error of a failed operation has its record in the attributes.

    Attributes:
        code: Name of the status, such as "PeerLost".
        peer: The other side, such as "rank 3 (site b, 10.0.0.2:4000)"; empty: none.
        op: The collective; empty: none.
        seq: Number of the operation in its process group; -1: none.
        errno: The system's error number; 0: none.
    """

    code: str = "Internal"
    peer: str = ""
    op: str = ""
    seq: int = -1
    errno: int = 0


class InvalidArgumentError(GeocommError, DistBackendError, ValueError):
    """An argument, an option, or an operation that differs between ranks."""

    code = "InvalidArgument"


class UnsupportedError(GeocommError, DistBackendError, NotImplementedError):
    """Something that geocomm does not do for this dtype, device or group."""

    code = "Unsupported"


class VersionMismatchError(GeocommError, DistBackendError):
    """Ranks, or geocomm and torch, whose versions do not fit each other."""

    code = "VersionMismatch"


class AuthenticationError(GeocommError, DistBackendError):
    """A connection that the security settings do not allow."""

    code = "Authentication"


class CorruptDataError(GeocommError, DistBackendError):
    """Received or given bytes that are not what they claim to be."""

    code = "CorruptData"


class OutputTooSmallError(GeocommError, DistBackendError, ValueError):
    """A destination with less room than the result needs."""

    code = "OutputTooSmall"


class OperationTimeoutError(GeocommError, DistNetworkError, TimeoutError):  # pyright: ignore[reportIncompatibleVariableOverride]
    """An operation that did not end within its timeout; names the ranks it waited for."""

    code = "Timeout"


class PeerLostError(GeocommError, DistNetworkError, ConnectionError):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A peer that died, left, or was silent for `link_deadline`."""

    code = "PeerLost"


class NetworkError(GeocommError, DistNetworkError, ConnectionError):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A connection that could not be made, or an error of the backend inside the site."""

    code = "Network"


class AbortedError(GeocommError, DistBackendError):
    """The process group was aborted, shut down, or had failed before."""

    code = "Aborted"


class DriverError(GeocommError, DistBackendError):
    """An error of an accelerator's driver."""

    code = "Driver"


class ReplicaMismatchError(GeocommError, DistBackendError):
    """Ranks that should hold the same tensors do not: `check_replicas` raises it, the native core never does.

    Attributes:
        tensor: Name of the first tensor that differs.
        ranks: The ranks of the default process group outside of the largest set of ranks that agree.
    """

    code = "ReplicaMismatch"
    tensor: str = ""
    ranks: tuple[int, ...] = ()


class DataError(GeocommError, DistBackendError, OSError):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Data of a catalog that cannot be read: a shard is missing, truncated, or not the one that the catalog names."""

    code = "Data"


class InternalError(GeocommError, DistBackendError):
    """A bug of geocomm."""

    code = "Internal"


CLASS_OF_CODE: dict[str, type[GeocommError]] = {kind.code: kind for kind in GeocommError.__subclasses__()}


def error_of(code: str, message: str) -> GeocommError:
    """The error that another process had, by its `GeocommError.code`; an unknown code gives a PeerLostError."""
    kind = CLASS_OF_CODE.get(code)
    return PeerLostError(f"{code}: {message}") if kind is None else kind(message)
