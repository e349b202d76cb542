"""geocomm.decompress of bytes that no geocomm wrote, or that were damaged on the way."""

from __future__ import annotations

import functools
import resource

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import geocomm
from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.errors import CorruptDataError, InvalidArgumentError, VersionMismatchError
from support.codec_oracle import ALL_DTYPES, FRAME_BYTES, HEADER_BYTES, Data, codecs, inputs, same_bits
from support.effort import effort

small = effort(40)
REFUSALS = (CorruptDataError, VersionMismatchError)  # the latter from the header's fifth byte
payloads = st.builds(
    lambda codec, data: geocomm.compress(data.tensor(), codec),
    codecs,
    inputs((torch.float32, torch.float16, torch.bfloat16), exponents=(-4, 4), largest_bytes=4000),
)


@small
@given(payloads, st.data())
def test_decompress_of_a_truncated_payload_raises_corrupt_data(payload: torch.Tensor, data: st.DataObject) -> None:
    with pytest.raises(CorruptDataError):
        geocomm.decompress(payload[: data.draw(st.integers(0, payload.numel() - 1))])


@small
@given(payloads, st.integers(0), st.integers(0, 7))
def test_decompress_with_a_flipped_bit_is_refused(payload: torch.Tensor, place: int, bit: int) -> None:
    payload[place % payload.numel()] ^= 1 << bit
    with pytest.raises(REFUSALS):
        geocomm.decompress(payload)


@small
@given(payloads, st.binary(min_size=1, max_size=100))
def test_decompress_with_bytes_after_the_last_frame_is_refused(payload: torch.Tensor, more: bytes) -> None:
    with pytest.raises(REFUSALS):
        geocomm.decompress(torch.cat([payload, torch.tensor(list(more), dtype=torch.uint8)]))


@small
@given(st.binary(max_size=200))
def test_decompress_of_any_bytes_is_refused(content: bytes) -> None:
    with pytest.raises(REFUSALS):
        geocomm.decompress(torch.tensor(list(content), dtype=torch.uint8))


@pytest.mark.parametrize("codec", ["none", "fp16", "int8", "int4:block=64"])
def test_decompress_of_a_payload_cut_between_frames_gives_the_frames_left(codec: str) -> None:
    tensor = Data(torch.float32, FRAME_BYTES // 4 + 1000).tensor()
    first = geocomm.compress(tensor[: FRAME_BYTES // 4], codec)
    payload = geocomm.compress(tensor, codec)
    assert same_bits(geocomm.decompress(payload[: first.numel()]), geocomm.decompress(payload)[: FRAME_BYTES // 4])
    for cut in (first.numel() - 1, first.numel() + 1, first.numel() + HEADER_BYTES, payload.numel() - 1):
        with pytest.raises(CorruptDataError):
            geocomm.decompress(payload[:cut])


@small
@given(payloads, st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4))
def test_decompress_of_damage_with_right_checksums_is_refused_or_fits_the_header(
    payload: torch.Tensor, changes: list[tuple[int, int]]
) -> None:
    """Whoever sends hostile bytes can compute checksums: every other check of the decoder must hold alone."""
    damaged = bytearray(payload.numpy().tobytes())
    for place, value in changes:
        # Half of the changes hit the header.
        damaged[place // 2 % (len(damaged) if place % 2 else min(len(damaged), HEADER_BYTES))] = value
    _seal(damaged)
    assume(damaged != payload.numpy().tobytes())
    try:
        decoded = geocomm.decompress(torch.tensor(list(damaged), dtype=torch.uint8))
    except REFUSALS:
        return
    assert decoded.numel() == int.from_bytes(damaged[12:16], "little")
    assert decoded.dtype in ALL_DTYPES


@small
@given(st.sampled_from((torch.int8, torch.float32, torch.bool)), st.integers(0, 300))
def test_decompress_of_a_tensor_other_than_contiguous_uint8_raises_invalid_argument(
    dtype: torch.dtype, elements: int
) -> None:
    with pytest.raises(InvalidArgumentError):
        geocomm.decompress(torch.zeros(elements, dtype=dtype))
    payload = geocomm.compress(torch.ones(elements), "none")
    with pytest.raises(InvalidArgumentError):
        geocomm.decompress(payload.repeat_interleave(2)[::2])


def _seal(frame: bytearray) -> None:
    """Writes both checksums of a payload of one frame."""
    frame[24:28] = _crc32c(frame[HEADER_BYTES:]).to_bytes(4, "little")
    frame[28:32] = _crc32c(frame[:28]).to_bytes(4, "little")


@functools.cache
def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


def _crc32c(data: bytes | bytearray) -> int:
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


# ---- how much a payload may ask for


@small
@given(payloads, st.integers(0, 3000))
def test_decompress_of_more_than_max_elems_is_refused_and_else_the_same(payload: torch.Tensor, limit: int) -> None:
    decoded = geocomm.decompress(payload)
    if decoded.numel() > limit:
        with pytest.raises(InvalidArgumentError, match="max_elems"):
            geocomm.decompress(payload, max_elems=limit)
        with pytest.raises(InvalidArgumentError, match="max_elems"):
            geocomm.decompress(payload, torch.empty_like(decoded), max_elems=limit)
    else:
        assert same_bits(geocomm.decompress(payload, max_elems=limit), decoded)


@pytest.mark.parametrize("codec", ["topk", "loco:k=1", "deadzone", "bitplanes", "lossless"])
def test_decompress_of_frames_that_stand_for_far_more_than_they_take_is_refused_before_anything_is_allocated(
    codec: str,
) -> None:
    elements = FRAME_BYTES // 4
    frame = geocomm.compress(
        torch.zeros(elements), codec, torch.zeros(elements) if codec_spec(codec).needs_feedback else None
    )
    frames = 2**40 // FRAME_BYTES // 8
    payload = frame.repeat(frames)
    assert frames * FRAME_BYTES > 500 * payload.numel()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidArgumentError, match=rf"holds {frames * elements} elements"):
        geocomm.decompress(payload, max_elems=elements)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib * 1024 < payload.numel() + 64 * 2**20


def test_decompress_with_negative_max_elems_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="max_elems"):
        geocomm.decompress(geocomm.compress(torch.ones(3), "none"), max_elems=-1)
