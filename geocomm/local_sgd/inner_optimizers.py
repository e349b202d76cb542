"""The inner optimizers of a site: the clock of a run with local steps, and what must be the same at every site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import torch

from geocomm.core.errors import InvalidArgumentError

_IN_USE: WeakSet[Any] = WeakSet()
"""Optimizers of runs that have not ended: with two handles every step would count for both."""


class InnerOptimizers:
    """One optimizer or several, which together make a step: the last one is the clock."""

    def __init__(self, optimizers: Any) -> None:
        """optimizers: torch's, that of a DeepSpeed engine, or a sequence of torch's in the order of their steps."""
        self.each: tuple[Any, ...] = tuple(optimizers) if isinstance(optimizers, Sequence) else (optimizers,)
        if any(one in _IN_USE for one in self.each):
            raise InvalidArgumentError("local_steps() was called for this optimizer before; call finish() of that run")

    def start(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each step that changed the weights; returns what ends that. Until then no other run
        can have these optimizers."""
        remove = after_each_step(self.each[-1], callback)
        for one in self.each:
            _IN_USE.add(one)

        def stop() -> None:
            remove()
            for one in self.each:
                _IN_USE.discard(one)

        return stop

    def terms(self) -> dict[str, str]:
        """What must be the same at every site: classes and the settings of groups, by name."""
        return optimizer_terms(self.each[-1])

    def heal(self) -> list[str]:
        """Begin anew where the state has NaN or Inf. What was begun anew, in words; empty where all was finite."""
        return []


def after_each_step(optimizer: Any, callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` after each step that changed the weights; returns what ends that.

    optimizer: torch's, or that of a DeepSpeed engine, which is no `torch.optim.Optimizer` where it has masters or
    shards: its `step` ends when the weights that the model computes with are up to date, unlike that of the optimizer
    inside. Steps that a loss scaler skips do not count, nor do micro-batches, which call no `step`.
    """
    # A loop may be compiled with its steps in it; the rounds are not.
    uncompiled: Any = torch.compiler.disable(callback)
    if isinstance(optimizer, torch.optim.Optimizer):

        def after_step(stepped: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            if not _was_skipped(stepped):
                uncompiled()

        return optimizer.register_step_post_hook(after_step).remove
    if not hasattr(optimizer, "overflow"):
        raise InvalidArgumentError(
            f"local steps: the optimizer is a {type(optimizer).__name__}; pass a torch.optim.Optimizer, or the "
            "optimizer of a DeepSpeed engine, engine.optimizer"
        )

    def step(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        if not optimizer.overflow:
            uncompiled()
        return result

    def remove() -> None:
        del optimizer.step

    plain, optimizer.step = optimizer.step, step
    return remove


def optimizer_terms(optimizer: Any) -> dict[str, str]:
    """The optimizer's class and the settings of its groups, by name."""
    inner = getattr(optimizer, "optimizer", optimizer)
    terms = {"optimizer": type(inner).__name__, "optimizer groups": str(len(optimizer.param_groups))}
    for index, group in enumerate(optimizer.param_groups):
        for name, value in sorted(group.items()):
            if name != "params":
                text = str(value.tolist()) if isinstance(value, torch.Tensor) else str(value)
                terms[f"optimizer {name} (group {index})"] = text
    return terms


def _was_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a GradScaler made this step one that does nothing: fused optimizers are called even then."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, torch.Tensor) and bool(found.item())
