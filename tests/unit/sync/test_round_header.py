"""Headers of rounds: what is written is read, and damaged bytes are refused with the name of the site."""

from __future__ import annotations

import random
from dataclasses import asdict

import pytest
import torch

from geocomm.core.errors import CorruptDataError, GeocommError
from geocomm.sync.local_steps.fixed.exchanges import Exchange
from geocomm.sync.local_steps.fixed.site_messages import (
    HEADER_BYTES,
    AverageHeader,
    EndHeader,
    FailureHeader,
    Header,
    OfferHeader,
    decode_header,
    encode_header,
)
from geocomm.sync.local_steps.model.fragments import Fragment, Range
from geocomm.sync.local_steps.outer.round_records import ROUNDS
from geocomm.sync.local_steps.outer.rounds import Coding, SiteOffer

DIGEST = (6, "0123456789abcdef" * 2)
OFFER = SiteOffer(7, 2, 61, 3, 12, 40, 2.5, True)
HEADERS: list[Header] = [
    OfferHeader(OFFER, 1000, 24, DIGEST),
    OfferHeader(SiteOffer(0, 0, 1, 0, 0), 0, 24, None),
    AverageHeader(7, 1000, 24),
    EndHeader(DIGEST),
    EndHeader(None),
    FailureHeader("ReplicaMismatch", "the sites differ"),
]


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: type(header).__name__)
def test_header_is_read_as_it_was_written(header: Header) -> None:
    encoded = encode_header(header)
    assert (encoded.dtype, encoded.numel()) == (torch.uint8, HEADER_BYTES)
    assert decode_header(encoded, "b") == header


def test_every_field_of_an_offer_travels() -> None:
    values = [value for value in asdict(OFFER).values() if not isinstance(value, bool)]
    assert len(set(values)) == len(values)  # so that no two can be mixed up
    assert OFFER.last


def test_long_reason_is_cut() -> None:
    header = decode_header(encode_header(FailureHeader("Internal", "ä" * 1000)), "b")
    assert isinstance(header, FailureHeader)
    assert header.code == "Internal"
    assert 100 < len(header.reason) < 250


def _refusal(damaged: torch.Tensor) -> str | None:
    try:
        decode_header(damaged, "b")
    except GeocommError as error:
        return str(error)
    return None


def test_damaged_header_is_refused_by_the_name_of_its_site() -> None:
    draw = random.Random(5)
    for header in HEADERS:
        for _ in range(300):
            damaged = encode_header(header)
            for _ in range(draw.randrange(1, 8)):
                damaged[draw.randrange(HEADER_BYTES)] = draw.randrange(256)
            assert "'b'" in (_refusal(damaged) or "'b'")


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ('"kind":"offer"', '"kind":"other"'),
        ('"digest":[6', '"digest":[-6'),
        ('"round":7', '"round":-7'),
        ('"round":7', '"round":7.5'),
        ('"squared_norm":2.5', '"squared_norm":-2.5'),
        ('"squared_norm":2.5', '"squared_norm":NaN'),
        ('"last":true', '"last":2'),
        ("{", ""),
    ],
)
def test_field_that_cannot_be_is_refused(field: str, other: str) -> None:
    text = encode_header(HEADERS[0]).numpy().tobytes().decode()
    assert field in text
    damaged = torch.frombuffer(bytearray(text.replace(field, other, 1).encode()), dtype=torch.uint8)
    with pytest.raises(CorruptDataError, match="'b'"):
        decode_header(damaged, "b")


@pytest.mark.parametrize(
    ("coded", "exact"), [(0, 44), (2**62, 44), (100, 0), (100, 2**63), (100, 10**6)], ids=lambda size: f"{size:g}"
)
def test_frames_of_a_size_that_no_codec_gives_are_refused(coded: int, exact: int) -> None:
    fragment = Fragment(0, (Range("w", 0, 256), Range("b", 0, 4, exact=True)))
    coding, record = Coding("int4", 1.0, "mean"), ROUNDS.open(0, 0, elastic=False)
    exchange = Exchange(OFFER, None, fragment, torch.zeros(260), None, coding, ("a", "b"), "a", record)
    exchange.check_sizes("b", OfferHeader(OFFER, 200, 44, None))
    with pytest.raises(CorruptDataError, match="'b'"):
        exchange.check_sizes("b", OfferHeader(OFFER, coded, exact, None))
