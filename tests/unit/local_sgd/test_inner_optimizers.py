"""What counts as a step, of torch's optimizers and of others."""

from __future__ import annotations

import pytest
import torch

from geocomm.core.errors import InvalidArgumentError
from geocomm.local_sgd.inner_optimizers import after_each_step
from support.local_models import adamw, make_model, train_step


def test_callback_comes_after_each_step_until_it_is_removed() -> None:
    model = make_model()
    optimizer, seen = adamw(model), []
    remove = after_each_step(optimizer, lambda: seen.append(model[4].bias.detach().clone()))
    for step in range(2):
        train_step(model, optimizer, "a", step)
        assert torch.equal(seen[-1], model[4].bias)
    remove()
    train_step(model, optimizer, "a", 2)
    assert len(seen) == 2


def test_step_of_an_optimizer_that_is_not_torchs_counts_unless_it_overflowed() -> None:
    """As the optimizers of DeepSpeed's engines do; theirs are in tests/multiprocess/local_sgd."""

    class Scaled:
        overflow = False

        def step(self, closure: object = None) -> object:
            return closure

    optimizer, seen = Scaled(), []
    remove = after_each_step(optimizer, lambda: seen.append(1))
    assert optimizer.step("result") == "result"
    optimizer.overflow = True
    optimizer.step()
    assert len(seen) == 1
    remove()
    optimizer.overflow = False
    optimizer.step()
    assert len(seen) == 1


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"Sequential.*engine\.optimizer"):
        after_each_step(make_model(), lambda: None)
