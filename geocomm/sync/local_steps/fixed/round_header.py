"""The header that a site sends before the frames of a round: the one place that writes and reads it.

512 bytes: one of the classes here as JSON, with spaces behind it. An aggregator sends one more for each round. What is
received is hostile until it is checked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeInt, TypeAdapter, ValidationError

from geocomm.core.bad_input import first_problem, problem_text
from geocomm.core.errors import CorruptDataError
from geocomm.sync.local_steps.outer.rounds import SiteOffer

HEADER_BYTES = 512

Digest = tuple[NonNegativeInt, Annotated[str, Field(pattern="^[0-9a-f]{32}$")]]
"""A round, and 32 hexadecimal digits: what a fragment is after it."""


@dataclass(frozen=True)
class OfferHeader:
    """A site begins a round; its frames follow."""

    offer: SiteOffer
    coded_bytes: NonNegativeInt
    exact_bytes: NonNegativeInt
    digest: Digest | None
    """The digest of the last round that the site has committed."""
    kind: Literal["offer"] = "offer"


@dataclass(frozen=True)
class AverageHeader:
    """The aggregator of a round has averaged, or the head of a region for it; its frames follow, unless no site
    counted."""

    round: NonNegativeInt
    coded_bytes: NonNegativeInt
    exact_bytes: NonNegativeInt
    kind: Literal["average"] = "average"


@dataclass(frozen=True)
class EndHeader:
    """A site begins no more rounds."""

    digest: Digest | None
    """The digest of the last round that the site has committed."""
    kind: Literal["end"] = "end"


@dataclass(frozen=True)
class FailureHeader:
    """A site has failed and begins no more rounds."""

    code: str
    """The code of the error: `GeocommError.code`."""
    reason: str
    """Its beginning travels."""
    kind: Literal["failure"] = "failure"


Header = OfferHeader | AverageHeader | EndHeader | FailureHeader
_HEADER: TypeAdapter[Header] = TypeAdapter(Annotated[Header, Field(discriminator="kind")])


def empty_header() -> torch.Tensor:
    """Room for a header that is to be received: uint8."""
    return torch.empty(HEADER_BYTES, dtype=torch.uint8)


def encode_header(header: Header) -> torch.Tensor:
    """The header as it travels: uint8, HEADER_BYTES of them."""
    content = _HEADER.dump_json(header)
    while len(content) > HEADER_BYTES and isinstance(header, FailureHeader):
        header = replace(header, reason=header.reason[: len(header.reason) * 9 // 10])
        content = _HEADER.dump_json(header)
    return torch.frombuffer(bytearray(content.ljust(HEADER_BYTES)), dtype=torch.uint8)


def decode_header(received: torch.Tensor, site: str) -> Header:
    """The header that a site sent: uint8, HEADER_BYTES of them. The sizes of frames are checked by who knows the codec.

    Raises CorruptDataError, which names the site, for what is no header.
    """
    try:
        return _HEADER.validate_json(received.numpy().tobytes())
    except ValidationError as error:
        raise CorruptDataError(
            f"local steps: the header of a round from site {site!r} is damaged: {problem_text(first_problem(error))}"
        ) from None
