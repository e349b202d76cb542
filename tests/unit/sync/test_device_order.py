"""What the hooks do in the order of a device's streams, as far as a CPU shows it."""

from __future__ import annotations

import math

import pytest
import torch

from geocomm.sync.gradients import device_order
from geocomm.sync.gradients.device_order import DeviceOrder, LaterValue, is_read_later, keep_for_stream, square_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_square_is_that_of_all_parts(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_order, "_SQUARED_AT_ONCE", 100)
    for size in (0, 1, 100, 1234):
        values = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)
        assert square_of(values).item() == pytest.approx(values.double().square().sum().item(), rel=1e-12)


def test_square_is_finite_where_all_elements_are() -> None:
    values = torch.full((1000,), torch.finfo(torch.float32).max)
    assert math.isfinite(square_of(values))
    for spoiler in (float("inf"), -float("inf"), float("nan")):
        values[777] = spoiler
        assert not math.isfinite(square_of(values))


def test_cpus_are_read_at_once_and_have_no_order() -> None:
    value = LaterValue(torch.tensor(3.5, dtype=torch.float64))
    assert value.read() == 3.5
    order = DeviceOrder()
    with order, order:
        keep_for_stream([torch.ones(2), None])
    assert not is_read_later(torch.ones(2))
    assert is_read_later(torch.ones(2, device="meta"))
