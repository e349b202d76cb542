"""What `compress` and `decompress` give for CUDA tensors is what they give for CPU tensors, bit for bit."""

from __future__ import annotations

import pytest
import torch

import geocomm
from geocomm.group.planning.coding_place import measure

DEVICE = "cuda"

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU and a torch built for it")

CODECS = (
    "none",
    "bf16",
    "int8",
    "int4:round=stochastic",
    "bit2+huffman",
    "deadzone",
    "deadzone+none",
    "bitplanes",
    "bitplanes:step=0.1+none",
    "lossless",
    "tiny",
    "topk:k=400",
    "topk:k=41,values=bf16",
    "loco",
)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SIZES = (0, 1, 4097, 600_001)


def tensor(size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    values = torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)
    if size > 5000:
        values[70] = float("inf")
        values[5000] = float("nan")
    return values


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_payloads_and_residuals_are_those_of_the_cpu(codec: str, dtype: torch.dtype, size: int) -> None:
    on_host = torch.zeros(size)
    on_device = torch.zeros(size, device=DEVICE)
    for call in range(2):
        values = tensor(size, dtype, call)
        expected = geocomm.compress(values, codec, on_host, seed=call)
        payload = geocomm.compress(values.to(DEVICE), codec, on_device, seed=call)
        assert payload.device.type == DEVICE
        assert torch.equal(payload.cpu(), expected)
        assert torch.equal(on_device.cpu(), on_host)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_payloads_decode_as_on_the_cpu(codec: str, dtype: torch.dtype) -> None:
    payload = geocomm.compress(tensor(600_001, dtype, 7), codec, torch.zeros(600_001))
    expected = geocomm.decompress(payload)
    decoded = geocomm.decompress(payload.to(DEVICE))
    assert torch.equal(decoded.cpu().view(torch.uint8), expected.view(torch.uint8))
    host_sum = torch.ones(600_001)
    device_sum = torch.ones(600_001, device=DEVICE)
    geocomm.decompress(payload, host_sum, add=True)
    geocomm.decompress(payload.to(DEVICE), device_sum, add=True)
    assert torch.equal(device_sum.cpu().nan_to_num(), host_sum.nan_to_num())


@pytest.mark.parametrize("codec", ["int8", "tiny", "topk:k=400", "loco"])
def test_damaged_payloads_are_refused_and_sums_left_alone(codec: str) -> None:
    payload = geocomm.compress(tensor(200_001, torch.float32, 9), codec, torch.zeros(200_001))
    payload[payload.numel() // 2] ^= 0x20
    total = torch.ones(200_001, device=DEVICE)
    with pytest.raises(geocomm.CorruptDataError):
        geocomm.decompress(payload.to(DEVICE), total, add=True)
    assert torch.equal(total.cpu(), torch.ones(200_001))


def test_places_are_measured_on_the_gpu() -> None:
    for codec in ("int8", "balanced", "tiny"):
        assert all(one.gpu_s > 0 and one.host_s > 0 for one in measure(torch.device(DEVICE), codec, 1))
