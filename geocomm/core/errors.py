"""Exceptions of geocomm: one class per status code of the native core, each also a torch.distributed error.

Code that catches torch's `DistNetworkError` or `DistBackendError` catches these too. Out of autograd's backward (DDP)
only torch's own class survives, without attributes: the message stands alone, and `geocomm.last_error()` has
the record.
"""

from __future__ import annotations

from torch.distributed import DistBackendError, DistError, DistNetworkError


class GeocommError(DistError):
    """Base of all. The attributes are those of the failed operation, where it has them.

    code: name of the status ("PeerLost", ...); peer: who ("rank 3 (site b, 10.0.0.2:4000)"); op: the collective;
    seq: its number in the process group, -1 for none; errno: the system's error number, 0 for none.
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


class OperationTimeoutError(GeocommError, DistNetworkError, TimeoutError):
    """An operation that did not end within its timeout; names the ranks it waited for."""

    code = "Timeout"


class PeerLostError(GeocommError, DistNetworkError, ConnectionError):
    """A peer that died, left, or was silent for `link_deadline`."""

    code = "PeerLost"


class NetworkError(GeocommError, DistNetworkError, ConnectionError):
    """A connection that could not be made, or an error of the backend inside the site."""

    code = "Network"


class AbortedError(GeocommError, DistBackendError):
    """The process group was aborted, shut down, or had failed before."""

    code = "Aborted"


class DriverError(GeocommError, DistBackendError):
    """An error of an accelerator's driver."""

    code = "Driver"


class ReplicaMismatchError(GeocommError, DistBackendError):
    """Ranks that should hold the same tensors do not (`check_replicas`): no status of the core's.

    tensor: name of the first that differs; ranks: global ranks that are not with the largest side.
    """

    code = "ReplicaMismatch"
    tensor: str = ""
    ranks: tuple[int, ...] = ()


class InternalError(GeocommError, DistBackendError):
    """A bug of geocomm."""

    code = "Internal"


CLASS_OF_CODE: dict[str, type[GeocommError]] = {
    cls.code: cls
    for cls in (
        InvalidArgumentError,
        UnsupportedError,
        VersionMismatchError,
        AuthenticationError,
        CorruptDataError,
        OutputTooSmallError,
        OperationTimeoutError,
        PeerLostError,
        NetworkError,
        AbortedError,
        DriverError,
        InternalError,
    )
}


def error_of(code: str, message: str) -> GeocommError:
    """The error that another process had. code: `GeocommError.code`; of an unknown one it is a PeerLostError."""
    for kind in GeocommError.__subclasses__():
        if kind.code == code:
            return kind(message)
    return PeerLostError(f"{code}: {message}")
