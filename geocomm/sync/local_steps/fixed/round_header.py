"""The header that a site sends before the frames of a round: the one place that writes and reads it.

512 bytes, little-endian:

| bytes | field |
|---|---|
| 4 | "GCLR" |
| 2, 2 | version 1; kind: 1 offer, 2 end, 3 failure |
| 8, 16 | the last round that the sender has committed (-1: none), and the digest of the fragment after it |
| 6 x 8, 8, 8 | of an offer: round, fragment, step, base, weight, every; squared norm (float64); last, 0 or 1 |
| 8, 8 | of an offer: bytes of the coded frame and of the exact one |
| 2, 398 | of a failure: bytes of the text, and the text in UTF-8: the error's code, a line feed, the message |

What is received is hostile until it is checked.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import torch

from geocomm.core.errors import CorruptDataError, VersionMismatchError
from geocomm.sync.local_steps.outer.rounds import SiteOffer

HEADER_BYTES = 512
_MAGIC = b"GCLR"
_VERSION = 1
_OFFER, _END, _FAILURE = 1, 2, 3
_START = struct.Struct("<4sHH")
_BODY = struct.Struct("<q16s6qdQQQ")
_TEXT_LENGTH = struct.Struct("<H")
_TEXT_AT = _START.size + _BODY.size + _TEXT_LENGTH.size
_MOST_TEXT_BYTES = HEADER_BYTES - _TEXT_AT
_NO_DIGEST = -1, bytes(16)

Digest = tuple[int, str]
"""A round, and 32 hexadecimal digits: what a fragment is after it."""


@dataclass(frozen=True)
class OfferHeader:
    """A site begins a round; its frames follow."""

    offer: SiteOffer
    coded_bytes: int
    exact_bytes: int
    digest: Digest | None
    """The digest of the last round that the site has committed."""


@dataclass(frozen=True)
class EndHeader:
    """A site begins no more rounds."""

    digest: Digest | None
    """The digest of the last round that the site has committed."""


@dataclass(frozen=True)
class FailureHeader:
    """A site has failed and begins no more rounds."""

    code: str
    """The code of the error: `GeocommError.code`."""
    reason: str
    """398 bytes of both travel, in UTF-8."""


Header = OfferHeader | EndHeader | FailureHeader


def empty_header() -> torch.Tensor:
    """Room for a header that is to be received: uint8."""
    return torch.empty(HEADER_BYTES, dtype=torch.uint8)


def encode_header(header: Header) -> torch.Tensor:
    """The header as it travels: uint8, HEADER_BYTES of them."""
    kind, digest, numbers, text = _FAILURE, None, (0,) * 6 + (0.0, 0, 0, 0), b""
    if isinstance(header, FailureHeader):
        text = f"{header.code}\n{header.reason}".encode()[:_MOST_TEXT_BYTES]
    else:
        kind, digest = _END, header.digest
    if isinstance(header, OfferHeader):
        kind, offer = _OFFER, header.offer
        numbers = (
            *(offer.round, offer.fragment, offer.step, offer.base, offer.weight, offer.every),
            *(offer.squared_norm, int(offer.last), header.coded_bytes, header.exact_bytes),
        )
    number, value = _NO_DIGEST if digest is None else (digest[0], bytes.fromhex(digest[1]))
    encoded = (
        _START.pack(_MAGIC, _VERSION, kind)
        + _BODY.pack(number, value, *numbers)
        + _TEXT_LENGTH.pack(len(text))
        + text.ljust(_MOST_TEXT_BYTES, b"\0")
    )
    return torch.frombuffer(bytearray(encoded), dtype=torch.uint8)


def decode_header(received: torch.Tensor, site: str) -> Header:
    """The header that a site sent: uint8, HEADER_BYTES of them. The sizes of frames are checked by who knows the codec.

    Raises VersionMismatchError for a header of another version, CorruptDataError for what is no header; both name the
    site.
    """
    data = received.numpy().tobytes()
    magic, version, kind = _START.unpack_from(data)
    if magic != _MAGIC:
        raise _corrupt(site, "it is no header of a round")
    if version != _VERSION:
        raise VersionMismatchError(
            f"local steps: site {site!r} sends headers of version {version}, and this site reads version {_VERSION}"
        )
    number, value, *numbers, norm, last, coded_bytes, exact_bytes = _BODY.unpack_from(data, _START.size)
    digest = None if number == _NO_DIGEST[0] else (number, value.hex())
    if kind == _FAILURE:
        (length,) = _TEXT_LENGTH.unpack_from(data, _START.size + _BODY.size)
        text = data[_TEXT_AT : _TEXT_AT + min(length, _MOST_TEXT_BYTES)].decode(errors="replace")
        code, _, reason = text.partition("\n")
        return FailureHeader(code, reason)
    if number < _NO_DIGEST[0]:
        raise _corrupt(site, f"it has committed round {number}")
    if kind == _END:
        return EndHeader(digest)
    if kind != _OFFER:
        raise _corrupt(site, f"it is of the unknown kind {kind}")
    if min(numbers) < 0 or math.isnan(norm) or norm < 0 or last > 1:
        raise _corrupt(site, f"it offers {numbers}, squared norm {norm}, last {last}")
    offer = SiteOffer(*numbers, squared_norm=norm, last=bool(last))
    return OfferHeader(offer, coded_bytes, exact_bytes, digest)


def _corrupt(site: str, what: str) -> CorruptDataError:
    return CorruptDataError(f"local steps: the header of a round from site {site!r} is damaged: {what}")
