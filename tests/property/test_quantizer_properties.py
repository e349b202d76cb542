"""What docs/spec/codecs.md says of the values that each codec gives: levels, steps, chosen elements, exact bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import geocomm
from support.codec_oracle import (
    ALL_DTYPES,
    BLOCKS,
    FLOATS,
    HEADER_BYTES,
    STAGES,
    Data,
    blocks_of,
    frames_of,
    inputs,
    is_plain,
    pack,
    same_bits,
    sizes,
    stages,
)
from support.effort import effort

large = effort(8)
small = effort(25)
SMALL_BYTES = 60_000
blocks = st.sampled_from(BLOCKS)
# Scales are rounded to bfloat16 (half a step is 2^-8), and come from float32 sums.
SCALE_SLACK = 2.0**-7
normal = inputs((torch.float32,), kinds=("normal",), exponents=(-30, 30), largest_bytes=SMALL_BYTES)


def rms(rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return (rows.double().square().sum(1) / lengths).sqrt()


def lengths_of(tensor: torch.Tensor, block: int) -> torch.Tensor:
    count = -(-tensor.numel() // block)
    lengths = torch.full((count,), block, dtype=torch.float64)
    if tensor.numel() % block:
        lengths[-1] = tensor.numel() % block
    return lengths


# ---- exact


@large
@given(inputs(ALL_DTYPES), stages)
def test_lossless_of_every_dtype_gives_the_same_bits_and_no_more_bytes(data: Data, stage: str) -> None:
    tensor = data.tensor()
    payload = geocomm.compress(tensor, f"lossless+{stage}")
    assert payload.numel() <= tensor.nbytes + HEADER_BYTES * len(frames_of(tensor))
    assert same_bits(geocomm.decompress(payload), tensor)


@small
@given(st.integers(4096, 100_000), st.integers(0, 99))
def test_lossless_of_float32_that_bfloat16_holds_is_smaller_than_bfloat16(elements: int, seed: int) -> None:
    tensor = Data(torch.float32, elements, seed=seed).tensor().bfloat16().float()
    assert geocomm.compress(tensor, "lossless").numel() < 2 * elements


# ---- one magnitude or a few per block


@small
@given(blocks, normal, st.sampled_from(("", *(f"+{stage}" for stage in STAGES))))
def test_bit1_gives_the_sign_times_the_mean_magnitude(block: int, data: Data, stage: str) -> None:
    tensor = data.tensor()
    decoded = geocomm.decompress(geocomm.compress(tensor, f"bit1:block={block}{stage}"))
    assert torch.equal(decoded.signbit(), tensor.signbit())
    rows, magnitudes = blocks_of(tensor, block).double().abs(), blocks_of(decoded.abs(), block)
    mean = rows.sum(1) / lengths_of(tensor, block)
    scale = magnitudes.amax(1).double()
    assert ((scale - mean).abs() <= SCALE_SLACK * mean).all()
    flat_scale = magnitudes.amax(1).repeat_interleave(block)[: tensor.numel()]
    assert torch.equal(decoded.abs(), flat_scale)


@small
@given(blocks, normal, st.sampled_from(("", *(f"+{stage}" for stage in STAGES))))
def test_bit2_gives_the_levels_of_lloyd_and_max_around_the_threshold(block: int, data: Data, stage: str) -> None:
    tensor = data.tensor()
    decoded = geocomm.decompress(geocomm.compress(tensor, f"bit2:block={block}{stage}"))
    assert torch.equal(decoded.signbit(), tensor.signbit())
    scale = rms(blocks_of(tensor, block), lengths_of(tensor, block)).repeat_interleave(block)[: tensor.numel()]
    level = decoded.abs().double() / scale
    is_high = level > 1
    expected = torch.where(is_high, 1.5104, 0.4528)
    assert ((level - expected).abs() <= (SCALE_SLACK + 1e-4) * expected).all()
    unit = tensor.abs().double() / scale
    assert (unit[is_high] >= 0.9816 * (1 - SCALE_SLACK)).all()
    assert (unit[~is_high] <= 0.9816 * (1 + SCALE_SLACK)).all()


@large
@given(
    st.sampled_from(("bit1", "bit2")),
    blocks,
    inputs((torch.float32,), kinds=("special",), exponents=(-20, 20), largest_bytes=SMALL_BYTES),
)
def test_block_that_holds_nan_or_inf_arrives_as_it_is(name: str, block: int, data: Data) -> None:
    tensor = data.tensor()
    decoded = geocomm.decompress(geocomm.compress(tensor, f"{name}:block={block}"))
    raw = ~blocks_of(tensor, block).isfinite().all(1).repeat_interleave(block)[: tensor.numel()]
    assert same_bits(decoded[raw], tensor[raw])
    assert decoded[~raw].isfinite().all()


# ---- dead zone


@small
@given(
    blocks,
    st.sampled_from((0.05, 0.7, 1.4, 8.0)),
    st.sampled_from(("none", *STAGES)),
    inputs((torch.float32,), kinds=("normal", "special"), exponents=(-30, 30), largest_bytes=SMALL_BYTES),
)
def test_dead_zone_errs_by_at_most_six_tenths_of_a_step(block: int, step: float, stage: str, data: Data) -> None:
    tensor = data.tensor()
    decoded = geocomm.decompress(geocomm.compress(tensor, f"deadzone:block={block},step={step}+{stage}"))
    raw = ~blocks_of(tensor, block).isfinite().all(1).repeat_interleave(block)[: tensor.numel()]
    assert same_bits(decoded[raw], tensor[raw])
    clean = torch.where(raw, 0, tensor)
    scale = rms(blocks_of(clean, block), lengths_of(tensor, block)).repeat_interleave(block)[: tensor.numel()]
    bound = 0.6001 * step * scale * (1 + SCALE_SLACK) + 2.0**-126
    lost = (decoded.double() - tensor.double())[~raw]
    assert (lost.abs() <= bound[~raw]).all()
    # What is far below the middle of the first step is dropped.
    small_ones = (
        ~raw
        & (clean.abs().double() < 0.6 * step * scale * (1 - SCALE_SLACK))
        & (scale > 2.0**-100)
        & (scale < 2.0**100)
    )
    peaks = blocks_of(clean, block).abs().amax(1).double().repeat_interleave(block)[: tensor.numel()]
    not_raw = peaks < 126 * step * scale * (1 - SCALE_SLACK)
    assert (decoded[small_ones & not_raw] == 0).all()


# ---- top-k


@small
@given(
    st.integers(1, 2048),
    st.sampled_from(("fp32", "bf16", "int8", "bit2")),
    sizes(4, 5 * 16384),
    st.integers(0, 99),
)
def test_top_k_keeps_the_largest_of_every_chunk(k: int, values: str, elements: int, seed: int) -> None:
    tensor = Data(torch.float32, elements, seed=seed).tensor()
    payload = pack(tensor, f"topk:k={k},values={values}")
    assume(not is_plain(payload))  # a frame most of which was chosen
    decoded = geocomm.decompress(payload)
    for before, after in zip(tensor.split(4096), decoded.split(4096), strict=True):
        expected = -(-k * before.numel() // 4096)
        kept = after != 0
        # A chosen value may itself be rounded to zero; normal numbers seldom are.
        assert kept.sum() <= expected
        if values in ("fp32", "bf16", "bit2"):
            assert kept.sum() == expected
        if kept.any() and not kept.all():
            assert before[kept].abs().min() >= before[~kept].abs().max() or values == "int8"
        if values == "fp32":
            assert torch.equal(before[kept], after[kept])
        if values == "bf16":
            assert torch.equal(before[kept].bfloat16().float(), after[kept])


@small
@given(st.integers(1, 2048), sizes(4, 5 * 16384), st.integers(0, 99))
def test_loco_keeps_the_largest_of_every_chunk_as_two_magnitudes(k: int, elements: int, seed: int) -> None:
    tensor = Data(torch.float32, elements, seed=seed).tensor()
    decoded = geocomm.decompress(pack(tensor, f"loco:k={k}"))
    for before, after in zip(tensor.split(4096), decoded.split(4096), strict=True):
        kept = after != 0
        assert kept.sum() == -(-k * before.numel() // 4096)
        assert torch.equal(before[kept].sign(), after[kept].sign())
        if not kept.any():
            continue
        if not kept.all():
            assert before[kept].abs().min() >= before[~kept].abs().max()
        magnitudes = after[kept].abs()
        assert magnitudes.unique().numel() <= 2
        for level in magnitudes.unique():
            members = before[kept].abs()[magnitudes == level]
            assert float(level) == pytest.approx(float(members.double().mean()), rel=2**-8)


@large
@given(
    st.sampled_from(("topk:k=64", "loco:k=64")),
    inputs(FLOATS, kinds=("special",), exponents=(-4, 4)),
)
def test_top_k_of_16_or_more_carries_nan_and_inf_before_all_else(codec: str, data: Data) -> None:
    tensor = data.tensor()
    decoded = geocomm.decompress(pack(tensor, codec))
    large_enough = tensor.numel() >= 1024  # then each chunk has room for all seven extremes
    if large_enough:
        assert torch.equal(decoded.isnan(), tensor.isnan())
        assert torch.equal(decoded[tensor.isinf()], tensor[tensor.isinf()])


# ---- stages


@small
@given(
    st.sampled_from(
        ("int8", "int4:block=64", "bit2", "bit1", "fp16", "bf16", "deadzone:step=0.3", "bitplanes:step=0.1")
    ),
    inputs(FLOATS, largest_bytes=SMALL_BYTES),
)
def test_stage_changes_bytes_but_no_value(codec: str, data: Data) -> None:
    tensor = data.tensor()
    plain = geocomm.decompress(geocomm.compress(tensor, f"{codec}+none"))
    for stage in STAGES:
        assert same_bits(geocomm.decompress(geocomm.compress(tensor, f"{codec}+{stage}")), plain)
