"""The hash behind check_replicas: it sees every bit, its place, dtype and shape."""

from __future__ import annotations

import pytest
import torch

from geocomm.core.errors import UnsupportedError
from geocomm.sync.gradients.replica_check import _hash_of

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8]


def _random_bits(dtype: torch.dtype, elements: int) -> torch.Tensor:
    size = torch.empty(0, dtype=dtype).element_size()
    generator = torch.Generator().manual_seed(elements)
    return torch.randint(0, 256, (elements * size,), dtype=torch.uint8, generator=generator).view(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("elements", [1, 3, 8, 1001, 70_001])
def test_hash_sees_any_single_bit(dtype: torch.dtype, elements: int) -> None:
    values = _random_bits(dtype, elements)
    before = _hash_of("x", values)
    assert _hash_of("x", values.clone()) == before
    raw = values.view(torch.uint8)
    for byte in {0, raw.numel() // 2, raw.numel() - 1}:
        for bit in range(8):
            raw[byte] ^= 1 << bit
            assert _hash_of("x", values) != before
            raw[byte] ^= 1 << bit
    assert _hash_of("x", values) == before


def test_hash_sees_two_signs_that_flip() -> None:
    values = torch.randn(5000)
    before = _hash_of("x", values)
    values[[10, 4000]] *= -1
    assert _hash_of("x", values) != before


def test_hash_sees_elements_that_change_places() -> None:
    values = torch.arange(40_000.0)
    swapped = values.clone()
    swapped[[0, 39_998]] = values[[39_998, 0]]
    assert len({_hash_of("x", values), _hash_of("x", swapped), _hash_of("x", values.roll(2))}) == 3


def test_hash_tells_shapes_dtypes_and_zeros_apart() -> None:
    zeros = torch.zeros(12)
    others = [zeros.view(3, 4), zeros.int(), torch.zeros(11), torch.zeros(13), -zeros, torch.zeros(0)]
    assert len({_hash_of("x", one) for one in [zeros, *others]}) == 7


def test_hash_sees_the_payload_of_a_nan() -> None:
    quiet = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert quiet.isnan().all()
    assert _hash_of("x", quiet[:1].clone()) != _hash_of("x", quiet[1:].clone())


def test_hash_is_of_the_values_whatever_the_strides_and_the_place_in_memory() -> None:
    values = torch.randn(50, 30)
    transposed = values.t().contiguous().t()
    shifted = torch.empty(1501, dtype=torch.float32)[1:].view(50, 30).copy_(values)
    assert transposed.stride() != values.stride()
    assert _hash_of("x", values) == _hash_of("x", transposed) == _hash_of("x", shifted)


def test_hash_of_a_sparse_tensor_is_refused() -> None:
    with pytest.raises(UnsupportedError):
        _hash_of("x", torch.eye(3).to_sparse())
