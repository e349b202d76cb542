"""The native passes of local steps: the same bits at every level of the CPU, and those of NumPy, step by step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from geocomm.core.errors import InvalidArgumentError
from geocomm.core.native import native
from support.codec_oracle import at_cpu_level, cpu_levels, same_bits

COUNTS = (0, 1, 15, 16, 17, 1000, 4099)


def values(count: int, seed: int, offset: int = 1) -> torch.Tensor:
    """Of all sizes, subnormal ones among them, in memory that no vector is aligned to."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(-130, 20, (count + offset,), generator=generator)
    return torch.ldexp(torch.randn(count + offset, generator=generator), sizes)[offset:]


def at_each_level(run: Callable[[], tuple[list[torch.Tensor], list[float]]]) -> tuple[list[torch.Tensor], list[float]]:
    """What the scalar level gives; asserts that the others give the same."""
    expected: tuple[list[torch.Tensor], list[float]] | None = None
    for level in cpu_levels():
        with at_cpu_level(level):
            tensors, numbers = run()
        if expected is None:
            expected = tensors, numbers
        assert all(same_bits(a, b) for a, b in zip(tensors, expected[0], strict=True)), level
        assert numbers == expected[1], level
    assert expected is not None
    return expected


def squares(array: np.ndarray) -> float:
    return float(np.square(array.astype(np.float64)).sum())


@pytest.mark.parametrize("count", COUNTS)
def test_delta_and_the_weights_that_are_kept(count: int) -> None:
    anchor, local = values(count, 1), values(count, 2)

    def run() -> tuple[list[torch.Tensor], list[float]]:
        delta, kept = torch.empty(count), torch.empty(count)
        alone = local.clone()
        found = [
            native().outer_delta(anchor, list(local.tensor_split([1, 40])), delta, kept),
            native().outer_delta(anchor, [alone], alone),
        ]
        return [delta, kept, alone], found

    (delta, kept, alone), found = at_each_level(run)
    assert same_bits(delta, anchor - local)
    assert same_bits(alone, delta)
    assert same_bits(kept, local)
    assert found == pytest.approx([squares(delta.numpy())] * 2)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("sites", [1, 2, 5])
def test_mean(count: int, sites: int) -> None:
    deltas = [values(count, seed) for seed in range(sites)]
    shares = [(site + 1) / 15 for site in range(sites)]

    def run() -> tuple[list[torch.Tensor], list[float]]:
        mean = torch.empty(count)
        return [mean], [native().outer_mean(deltas, shares, mean)]

    (mean,), (found,) = at_each_level(run)
    expected = deltas[0].numpy() * np.float32(shares[0])
    for delta, share in zip(deltas[1:], shares[1:], strict=True):
        expected = expected + delta.numpy() * np.float32(share)
    assert same_bits(mean, torch.from_numpy(expected))
    assert found == pytest.approx(squares(expected))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("has_momentum", [False, True])
def test_step(count: int, has_momentum: bool) -> None:
    lr, mu = np.float32(0.7), np.float32(0.8)
    delta, before, momentum_before = values(count, 1), values(count, 2), values(count, 3)

    def run() -> tuple[list[torch.Tensor], list[float]]:
        anchor, momentum = before.clone(), momentum_before.clone() if has_momentum else None
        numbers = native().outer_step(0.7, 0.8, delta, anchor, momentum)
        return [anchor, *([] if momentum is None else [momentum])], list(numbers)

    tensors, (moved, given) = at_each_level(run)
    change = delta.numpy()
    if has_momentum:
        velocity = mu * momentum_before.numpy() + delta.numpy()
        change = mu * velocity + delta.numpy()
        assert same_bits(tensors[1], torch.from_numpy(velocity))
    assert same_bits(tensors[0], torch.from_numpy(before.numpy() - lr * change))
    assert moved == pytest.approx(squares(lr * change))
    assert given == pytest.approx(squares(delta.numpy()))


@pytest.mark.parametrize("count", COUNTS)
def test_merges(count: int) -> None:
    own, anchor, begin = values(count, 1), values(count, 2), values(count, 3)

    def run() -> tuple[list[torch.Tensor], list[float]]:
        carried, blended, replaced = own.clone(), own.clone(), own.clone()
        native().outer_carry(list(carried.tensor_split([3])), anchor, begin)
        native().outer_blend(list(blended.tensor_split([3])), anchor, 0.3)
        native().outer_blend([replaced.fill_(torch.nan)], anchor, 0.0)
        return [carried, blended, replaced], []

    (carried, blended, replaced), _ = at_each_level(run)
    assert same_bits(carried, (own - begin) + anchor)
    assert same_bits(blended, own * 0.3 + anchor * 0.7)
    assert same_bits(replaced, anchor)


def test_autograd_notices_a_merge_between_forward_and_backward() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    loss = (weight * weight).sum()
    native().outer_carry([weight.detach()], torch.ones(4), torch.zeros(4))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    "wrong", [torch.zeros(3), torch.zeros(4, dtype=torch.float64), torch.zeros(8)[::2], torch.zeros(4, device="meta")]
)
def test_tensor_that_does_not_fit_is_refused(wrong: torch.Tensor) -> None:
    right = torch.zeros(4)
    for call in (
        lambda: native().outer_delta(right, [wrong], right),
        lambda: native().outer_delta(right, [right], right, wrong),
        lambda: native().outer_mean([wrong], [1.0], right),
        lambda: native().outer_step(1.0, 0.0, right, right, wrong),
        lambda: native().outer_carry([right], right, wrong),
        lambda: native().outer_blend([wrong], right, 0.5),
    ):
        with pytest.raises(InvalidArgumentError):
            call()
    with pytest.raises(InvalidArgumentError):
        native().outer_mean([right], [1.0, 2.0], right)
