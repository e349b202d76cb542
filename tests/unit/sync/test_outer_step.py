"""The outer step, compared with its definition on single float32 numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from geocomm.core.errors import InvalidArgumentError
from geocomm.sync.local_steps.outer.anchor import outer_step
from geocomm.sync.local_steps.settings.local_settings import Nesterov


def bits(values: torch.Tensor) -> list[int]:
    return values.view(torch.int32).tolist()


def scalar_step(
    outer: Nesterov, anchor: np.ndarray, momentum: np.ndarray | None, delta: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """One number at a time; NumPy rounds each operation of two float32 to float32."""
    lr, mu = np.float32(outer.lr), np.float32(outer.momentum)
    anchor, momentum = anchor.copy(), None if momentum is None else momentum.copy()
    for index in range(len(anchor)):
        change = delta[index]
        if momentum is not None:
            momentum[index] = np.float32(np.float32(momentum[index] * mu) + delta[index])
            change = np.float32(np.float32(momentum[index] * mu) + delta[index])
        anchor[index] = np.float32(anchor[index] - np.float32(change * lr))
    return anchor, momentum


@pytest.mark.parametrize("numel", [1, 7, 1003, (1 << 16) + 5])
@pytest.mark.parametrize("outer", [Nesterov(0.6, 0.9), Nesterov(0.4, 0.3), Nesterov(1.0, 0.0), Nesterov(0.2, 0.0)])
def test_outer_step_has_the_bits_of_its_scalar_definition(outer: Nesterov, numel: int) -> None:
    generator = torch.Generator().manual_seed(numel)
    anchor = torch.randn(numel, generator=generator)
    momentum = torch.randn(numel, generator=generator) * 1e-2 if outer.momentum else None
    for _ in range(2):
        delta = torch.randn(numel, generator=generator) * 1e-2
        expected = scalar_step(
            outer, anchor.numpy(), None if momentum is None else momentum.numpy(), delta.clone().numpy()
        )
        outer_step(outer, anchor, momentum, delta)
        assert bits(anchor) == bits(torch.from_numpy(expected[0]))
        if momentum is not None:
            assert bits(momentum) == bits(torch.from_numpy(expected[1]))


def test_outer_step_leaves_the_delta_as_it_was() -> None:
    delta = torch.ones(3)
    outer_step(Nesterov(1.0, 0.0), torch.zeros(3), None, delta)
    outer_step(Nesterov(1.0, 0.5), torch.zeros(3), torch.zeros(3), delta)
    assert delta.tolist() == [1, 1, 1]


@pytest.mark.parametrize(("lr", "momentum"), [(0, 0.9), (-1, 0), (float("nan"), 0), (1, 1.0), (1, -0.1)])
def test_optimizer_that_cannot_be_is_refused(lr: float, momentum: float) -> None:
    with pytest.raises(InvalidArgumentError):
        Nesterov(lr, momentum)
