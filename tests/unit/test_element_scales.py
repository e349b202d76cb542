"""The scales that gradients are divided by before they are encoded."""

from __future__ import annotations

import pytest
import torch

from geocomm.gradients.element_scales import ElementScales
from geocomm.gradients.named_values import Slice

pytestmark = pytest.mark.unit
ELEMENTS = 5000
LAYOUT = (Slice("a", 0, 3000, False), Slice("b", 3000, 2000, False))


def gradients(step: int) -> torch.Tensor:
    """Normal, of a standard deviation from 2^-10 to 2^10."""
    size = torch.logspace(-10, 10, ELEMENTS, base=2.0)
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(step)) * size


def observed(span: tuple[int, int], steps: int = 40, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    scales = ElementScales()
    for step in range(steps):
        scales.scale_of(0, LAYOUT, span)
        scales.observe(0, gradients(step).to(dtype))
    scale = scales.scale_of(0, LAYOUT, span)
    assert scale is not None
    return scale


def test_nothing_is_known_before_the_first_gradient() -> None:
    assert ElementScales().scale_of(0, LAYOUT, (0, 10)) is None


def test_scales_are_powers_of_two_near_the_magnitude() -> None:
    scale = observed((0, ELEMENTS))
    mantissa, _ = scale.frexp()
    assert (mantissa == 0.5).all()
    ratio = scale / torch.logspace(-10, 10, ELEMENTS, base=2.0)
    above_floor = ratio[ELEMENTS * 7 // 10 :]
    assert above_floor.min() > 0.25
    assert above_floor.max() < 2.0
    assert 0.25 <= scale.min() <= 2  # the floor: twice the geometric mean, and not 2^-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_of_a_buffer_have_the_scales_of_the_whole(dtype: torch.dtype) -> None:
    """Ranks of sites of other sizes hold other parts, and must agree bit for bit."""
    whole = observed((0, ELEMENTS), dtype=dtype)
    for span in ((0, 1), (17, 1234), (2999, 3001), (4000, ELEMENTS)):
        assert torch.equal(observed(span, dtype=dtype), whole[span[0] : span[1]])


def test_elements_without_a_gradient_have_the_floor() -> None:
    scales = ElementScales()
    scales.scale_of(0, LAYOUT, (0, 8))
    scales.observe(0, torch.tensor([0.0] * 4 + [1.0] * 3 + [1024.0]))
    scale = scales.scale_of(0, LAYOUT, (0, 8))
    assert scale is not None
    assert scale.tolist() == [8.0] * 7 + [1024.0]  # the exponents' mean is 2.5, rounded down


def test_zeros_alone_leave_finite_scales() -> None:
    scales = ElementScales()
    scales.scale_of(0, LAYOUT, (0, 8))
    scales.observe(0, torch.zeros(8))
    scale = scales.scale_of(0, LAYOUT, (0, 8))
    assert scale is not None
    assert torch.equal(scale, torch.full((8,), 2.0))


def test_another_layout_starts_anew() -> None:
    scales = ElementScales()
    scales.scale_of(0, LAYOUT, (0, 8))
    scales.observe(0, torch.ones(8))
    assert scales.scale_of(0, LAYOUT, (0, 8)) is not None
    assert scales.scale_of(0, LAYOUT[:1], (0, 8)) is None
    assert scales.scale_of(1, LAYOUT, (0, 8)) is None


def test_a_factor_reaches_the_scales_with_the_next_look() -> None:
    scales = ElementScales()
    for _ in range(4):
        scales.scale_of(0, LAYOUT, (0, 8))
        scales.observe(0, torch.ones(8))
    scales.scale(16.0)
    scales.scale_of(0, LAYOUT, (0, 8))
    scales.observe(0, torch.full((8,), 16.0))
    scale = scales.scale_of(0, LAYOUT, (0, 8))
    assert scale is not None
    assert torch.equal(scale, torch.full((8,), 32.0))
