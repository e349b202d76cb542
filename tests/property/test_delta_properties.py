"""geocomm.make_delta and geocomm.apply_delta, over dtypes, sizes, layouts and how much differs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import geocomm
from geocomm.core.errors import CorruptDataError, InvalidArgumentError, UnsupportedError
from support.codec_oracle import ALL_DTYPES, Data
from support.effort import effort

small = effort(40)
DTYPES = (*ALL_DTYPES, torch.float8_e4m3fn)


def any_bits(dtype: torch.dtype, elements: int, seed: int) -> torch.Tensor:
    """NaNs of all kinds, -0 and infinities among them."""
    if dtype == torch.bool:
        return Data(dtype, elements).tensor()
    size = torch.empty((), dtype=dtype).element_size()
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (elements * size,), dtype=torch.uint8, generator=generator).view(dtype)


def bits_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@st.composite
def pairs(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    dtype, elements = draw(st.sampled_from(DTYPES)), draw(st.integers(0, 3000))
    base = any_bits(dtype, elements, draw(st.integers(0, 99)))
    tensor, other = base.clone(), any_bits(dtype, elements, draw(st.integers(100, 199)))
    every = draw(st.sampled_from((1, 2, 7, 100, 10_000)))
    tensor[::every] = other[::every]
    return tensor, base


@small
@given(pair=pairs(), threads=st.sampled_from((1, 2)))
def test_the_tensor_comes_out_of_its_base_bit_for_bit(pair: tuple[torch.Tensor, torch.Tensor], threads: int) -> None:
    tensor, base = pair
    delta = geocomm.make_delta(tensor, base, threads=threads)
    assert torch.equal(delta, geocomm.make_delta(tensor, base))
    made = base.clone()
    geocomm.apply_delta(delta, made, threads=threads)
    assert bits_of(made) == bits_of(tensor)


@small
@given(pair=pairs(), data=st.data())
def test_damage_and_other_bases_are_refused_and_nothing_is_changed(
    pair: tuple[torch.Tensor, torch.Tensor], data: Any
) -> None:
    tensor, base = pair
    delta = geocomm.make_delta(tensor, base)
    at, bit = data.draw(st.integers(0, delta.numel() - 1)), data.draw(st.integers(0, 7))
    damaged, made = delta.clone(), base.clone()
    damaged[at] ^= 1 << bit
    with pytest.raises((CorruptDataError, geocomm.VersionMismatchError)):
        geocomm.apply_delta(damaged, made)
    assert bits_of(made) == bits_of(base)
    with pytest.raises(CorruptDataError):
        geocomm.apply_delta(delta[:at], made)
    if bits_of(tensor) != bits_of(base):
        other = tensor.clone()
        with pytest.raises(InvalidArgumentError, match="not the base"):
            geocomm.apply_delta(delta, other)
        assert bits_of(other) == bits_of(tensor)


def test_tensors_of_any_layout_are_taken_and_written_in_place() -> None:
    base = torch.randn(12, 40).bfloat16()
    tensor = base.clone()
    tensor[3, 5:9] += 1
    delta = geocomm.make_delta(tensor.t(), base.t())
    made = base.clone()
    geocomm.apply_delta(delta, made.t())
    assert torch.equal(made, tensor)
    leaf = torch.nn.Parameter(base.float())
    geocomm.apply_delta(geocomm.make_delta(tensor.float(), leaf), leaf)
    assert torch.equal(leaf, tensor.float())


def test_what_does_not_fit_is_refused_in_one_sentence() -> None:
    base = torch.zeros(10, dtype=torch.bfloat16)
    delta = geocomm.make_delta(base, base)
    with pytest.raises(InvalidArgumentError, match="one dtype and size; the tensor has 10 of Half on cpu"):
        geocomm.make_delta(base.half(), base)
    with pytest.raises(InvalidArgumentError, match="the delta is of 10 elements of bfloat16; the tensor has 11"):
        geocomm.apply_delta(delta, torch.zeros(11, dtype=torch.bfloat16))
    with pytest.raises(UnsupportedError, match="no deltas of dtype ComplexFloat"):
        geocomm.make_delta(torch.zeros(2, dtype=torch.complex64), torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(UnsupportedError, match=r"use tensor\.cpu\(\)"):
        geocomm.make_delta(base.to("meta"), base.to("meta"))
    with pytest.raises(InvalidArgumentError, match="a delta is a uint8 tensor"):
        geocomm.apply_delta(base, base)
    with pytest.raises(CorruptDataError, match="wrong magic"):
        geocomm.apply_delta(geocomm.compress(base, "none"), base)
    with pytest.raises(InvalidArgumentError, match="threads is 0"):
        geocomm.make_delta(base, base, threads=0)
