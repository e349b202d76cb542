"""How the ends of a TLS connection between ranks agree on its keys: which ways the native module's OpenSSL has."""

from __future__ import annotations

import ctypes
import functools

from geocomm.core.native import native

HYBRID = "X25519MLKEM768"
"""X25519 together with ML-KEM: what is recorded today cannot be read by a later quantum computer either."""
CLASSIC = "X25519"
_FIRST_WITH_HYBRID = (3, 5)


@functools.cache
def openssl_version() -> tuple[int, int]:
    """Major and minor version of the OpenSSL that the native module runs with, which may not be Python's."""
    library = ctypes.CDLL(native().__file__)
    library.OpenSSL_version_num.restype = ctypes.c_ulong
    number = library.OpenSSL_version_num()
    return number >> 28, number >> 20 & 0xFF


def key_exchange() -> str:
    """What this process prefers, and uses with peers that have it."""
    return HYBRID if openssl_version() >= _FIRST_WITH_HYBRID else CLASSIC
