"""The scales that gradients are divided by before they are encoded."""

from __future__ import annotations

import pytest
import torch

from geocomm.core.errors import InvalidArgumentError
from geocomm.core.native import native
from geocomm.sync.gradients.bucket_reduction import ElementScales, learn_scales
from geocomm.sync.gradients.named_values import Slice

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


@pytest.mark.parametrize("size", [1, 7, 4096, 10_001])
def test_native_scales_are_those_of_torch_bit_for_bit(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    for first, last in ((0, size), (size // 3, size // 2), (size, size)):
        squares = [torch.zeros(last - first), torch.zeros(last - first)]
        scales = [torch.ones(last - first), torch.ones(last - first)]
        for step in range(8):
            exponent = torch.randint(-140, 60 if step < 6 else 127, (size,), generator=generator)
            values = torch.randn(size, generator=generator) * torch.exp2(exponent)
            values[torch.randint(0, size, (1 + size // 9,), generator=generator)] = 0
            native().learn_scales(values, first, 1 / (step + 1), step % 3, squares[0], scales[0])
            learn_scales(values, first, 1 / (step + 1), step % 3, squares[1], scales[1])
            assert torch.equal(squares[0].view(torch.int32), squares[1].view(torch.int32))
            assert torch.equal(scales[0].view(torch.int32), scales[1].view(torch.int32))


def test_native_scales_refuse_other_tensors() -> None:
    good = torch.ones(8)
    for values, first, squares, scale in (
        (good.double(), 0, good, good),
        (good[::2], 0, good[:4], good[:4]),
        (good, 1, good, good),
        (good, -1, good[:4], good[:4]),
        (good, 0, good, good[:4]),
    ):
        with pytest.raises(InvalidArgumentError):
            native().learn_scales(values, first, 0.5, 1, squares, scale)


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


def test_gradients_that_a_device_finds_not_finite_teach_nothing() -> None:
    """As if they had not come, bit for bit, at first and later, when not every gradient is looked at."""
    told, never_shown = ElementScales(), ElementScales()
    for step in range(30):
        told.scale_of(0, LAYOUT, (17, 4000))
        never_shown.scale_of(0, LAYOUT, (17, 4000))
        if step % 3 == 0:
            spoiled = gradients(100 + step)
            spoiled[step] = float("nan") if step % 2 else float("inf")
            told.observe(0, spoiled, torch.tensor(False))
            told.forget_last(0)
        assert_same_scales(told, never_shown)
        told.observe(0, gradients(step), torch.tensor(True))
        never_shown.observe(0, gradients(step))
        assert_same_scales(told, never_shown)


def assert_same_scales(a: ElementScales, b: ElementScales) -> None:
    first, second = (scales.scale_of(0, LAYOUT, (17, 4000)) for scales in (a, b))
    assert (first is None) == (second is None)
    assert first is None or torch.equal(first, second)


def test_scales_of_a_device_are_learned_without_reading_from_it() -> None:
    meta = torch.device("meta")  # whose values nobody can read
    scales = ElementScales()
    for _ in range(20):
        scales.scale_of(0, LAYOUT, (0, ELEMENTS), meta)
        scales.observe(0, torch.ones(ELEMENTS, device=meta), torch.ones((), dtype=torch.bool, device=meta))
    scale = scales.scale_of(0, LAYOUT, (0, ELEMENTS), meta)
    assert scale is not None
    assert scale.device == meta


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
