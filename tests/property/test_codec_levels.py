"""The bytes of a payload depend on neither the CPU's instruction sets, nor threads, nor where the tensor lies."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

import geocomm
from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.native import native
from support.codec_oracle import (
    FLOATS,
    FRAME_BYTES,
    Data,
    all_codecs,
    at_cpu_level,
    cpu_levels,
    inputs,
    pack,
    same_bits,
)
from support.effort import effort

small = effort(50)
large = effort(8)
seeds = st.integers(0, 2**64 - 1)
residual_dtypes = st.sampled_from((torch.float32, torch.bfloat16))
decays = st.sampled_from((1.0, 0.9, 0.0))


@small
@given(all_codecs, inputs(FLOATS, largest_bytes=40_000), seeds, residual_dtypes, decays, st.booleans())
def test_every_cpu_level_gives_the_same_bytes_residuals_and_elements(
    codec: str, data: Data, seed: int, residual_dtype: torch.dtype, decay: float, feedback: bool
) -> None:
    tensor = data.tensor()
    feedback = feedback or codec_spec(codec).needs_feedback
    found = []
    for level in cpu_levels():
        residual = Data(torch.float32, data.elements, seed=7).tensor().to(residual_dtype) if feedback else None
        with at_cpu_level(level):
            assert native().cpu_level() == level
            payload = pack(tensor, codec, seed=seed, residual=residual, decay=decay)
            decoded = geocomm.decompress(payload)
            added = geocomm.decompress(payload, out=torch.ones(data.elements), add=True)
        found.append((payload, residual, decoded, added))
    for other in found[1:]:
        for reference, got in zip(found[0], other, strict=True):
            assert reference is None or same_bits(reference, got)


@large
@given(all_codecs, inputs(FLOATS, largest_bytes=4 * FRAME_BYTES), seeds, st.integers(2, 4))
def test_threads_change_neither_payload_nor_residual_nor_result(
    codec: str, data: Data, seed: int, threads: int
) -> None:
    tensor = data.tensor()
    found = []
    for count in (1, threads):
        residual = torch.zeros(data.elements)
        payload = pack(tensor, codec, seed=seed, residual=residual, threads=count)
        found.append((payload, residual, geocomm.decompress(payload, threads=count)))
    for one, many in zip(*found, strict=True):
        assert same_bits(one, many)


@small
@given(all_codecs, inputs(FLOATS, largest_bytes=40_000), seeds, st.integers(1, 40))
def test_place_in_memory_changes_nothing(codec: str, data: Data, seed: int, shift: int) -> None:
    tensor = data.tensor()
    moved = torch.cat([torch.zeros(shift, dtype=data.dtype), tensor])[shift:]
    residual = torch.zeros(data.elements)
    moved_residual = torch.zeros(data.elements + shift)[shift:]
    payload = pack(tensor, codec, seed=seed, residual=residual)
    assert torch.equal(payload, pack(moved, codec, seed=seed, residual=moved_residual))
    assert torch.equal(residual, moved_residual)
    moved_payload = torch.cat([torch.zeros(shift, dtype=torch.uint8), payload])[shift:]
    assert same_bits(geocomm.decompress(moved_payload), geocomm.decompress(payload))


@small
@given(all_codecs, inputs(FLOATS, largest_bytes=40_000))
def test_payload_in_the_callers_memory_is_the_same_and_leaves_the_rest(codec: str, data: Data) -> None:
    tensor = data.tensor()
    bound = geocomm.compress_bound(tensor, codec)
    room = torch.full((bound + 64,), 0xA5, dtype=torch.uint8)
    payload = pack(tensor, codec, out=room[:bound])
    assert payload.data_ptr() == room.data_ptr()
    assert torch.equal(payload, pack(tensor, codec))
    assert (room[bound:] == 0xA5).all()


@small
@given(all_codecs, inputs(FLOATS, kinds=("normal", "special"), exponents=(-4, 4), largest_bytes=40_000))
def test_decompress_that_adds_gives_the_sum(codec: str, data: Data) -> None:
    tensor = data.tensor()
    payload = pack(tensor, codec)
    addend = Data(torch.float32, data.elements, seed=5).tensor()
    total = addend.clone()
    assert geocomm.decompress(payload, out=total, add=True) is total
    decoded = geocomm.decompress(payload).float()
    expected = addend + decoded
    if data.dtype == torch.float32:
        assert same_bits(total[~expected.isnan()], expected[~expected.isnan()])
    else:
        # What is added was not rounded to 16 bits, nor cut to their range.
        inside = expected.isfinite() & (decoded.abs() < torch.finfo(data.dtype).max)
        bound = torch.finfo(data.dtype).eps * decoded.abs() + 1e-6 * expected.abs() + 1e-7
        assert ((total - expected).abs() <= bound)[inside].all()
    assert torch.equal(total.isnan(), expected.isnan())


@large
@given(all_codecs, inputs(FLOATS))
def test_bound_holds_for_any_data(codec: str, data: Data) -> None:
    tensor = data.tensor()
    assert pack(tensor, codec).numel() <= geocomm.compress_bound(tensor, codec)
