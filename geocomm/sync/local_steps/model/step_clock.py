"""When a training loop has made an optimizer step, of one optimizer or of several that share the step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from types import FrameType
from typing import Any, cast

import torch

from geocomm.core.errors import InvalidArgumentError
from geocomm.sync.local_steps.model.optimizer_state import local_part

_MOST_SKIPS = 32
"""In a row. A GradScaler halves its scale each time: after this many there is nothing left to halve."""

_StepHook = Callable[[bool], None]
"""Called after each step, with whether it was one that changes nothing."""


def after_each_step(
    optimizers: Sequence[Any], labels: Sequence[str], callback: Callable[[], None]
) -> Callable[[], None]:
    """Call `callback` after each step that changed the weights; returns what ends that.

    optimizers: one of torch's, or that of a DeepSpeed engine, or several of torch's: these make a step together, each
    once, in the order given or in another that stays. labels: what errors call them. Steps that a loss scaler skips do
    not count, nor do micro-batches, which call no `step`. Where several do not step together, the next step raises
    InvalidArgumentError.
    """
    # A loop may be compiled with its steps in it; the rounds are not.
    uncompiled: Any = cast(Any, torch.compiler).disable
    together, hooks = _StepTogether(optimizers, labels, callback), ExitStack()
    for index, one in enumerate(optimizers):
        hooks.callback(_hook(one, uncompiled(partial(together.after, index))))
    return hooks.close


class _StepTogether:
    """Optimizers of which each steps once in a step of the training. The last one ends it.

    A GradScaler looks at the gradients of each optimizer by themselves, so it may skip one and not the other. Such a
    step does not count.
    """

    def __init__(self, optimizers: Sequence[Any], labels: Sequence[str], callback: Callable[[], None]) -> None:
        self._optimizers = optimizers
        self._labels = labels
        self._callback = callback
        self._last = len(optimizers) - 1
        self._knows_last = False  # the loop may step them in another order than they were given
        self._stepped: set[int] = set()  # since the last end
        self._skips = 0

    def after(self, index: int, skipped: bool) -> None:
        """The optimizer of this index has made a step."""
        if skipped:
            return
        if index in self._stepped:  # so the step before had no end: what ends it was skipped, or forgotten
            self._require_skips(self._missing(), by_scaler=_is_under_scaler())
            self._stepped.clear()
        self._stepped.add(index)
        missing = self._missing()
        if not missing:
            self._last, self._knows_last = index, True
            self._stepped.clear()
            self._skips = 0
            self._callback()
        elif index == self._last:
            seen = all(_has_nonfinite_gradient(self._optimizers[one]) for one in missing)
            if seen or self._knows_last:
                self._require_skips(missing, by_scaler=seen or _is_under_scaler())
                self._stepped.clear()

    def _missing(self) -> list[int]:
        return [index for index in range(len(self._optimizers)) if index not in self._stepped]

    def _require_skips(self, missing: Sequence[int], *, by_scaler: bool) -> None:
        """by_scaler: whether these may have been skipped on purpose."""
        self._skips += 1
        if not by_scaler or self._skips > _MOST_SKIPS:
            names = " and ".join(self._labels[index] for index in missing)
            others = " and ".join(self._labels[index] for index in self._stepped)
            raise InvalidArgumentError(
                f"local steps: {others} made a step without {names}; call step() of every optimizer once in each step "
                "of the training, always in the same order"
            )


def _hook(optimizer: Any, after: _StepHook) -> Callable[[], None]:
    """Have `after` called after each `step`; returns what ends that.

    The optimizer of a DeepSpeed engine is no `torch.optim.Optimizer` where it has masters or shards: its `step` ends
    when the weights that the model computes with are up to date, unlike that of the optimizer inside.
    """
    if isinstance(optimizer, torch.optim.Optimizer):

        def after_step(stepped: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            after(_was_skipped(stepped))

        return optimizer.register_step_post_hook(after_step).remove

    def step(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        after(bool(optimizer.overflow))
        return result

    def remove() -> None:
        del optimizer.step

    plain, optimizer.step = optimizer.step, step
    return remove


def _was_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a GradScaler made this step one that does nothing: fused optimizers are called even then."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, torch.Tensor) and bool(found.item())


def _has_nonfinite_gradient(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a gradient is not finite: a GradScaler then skips the optimizer and calls none of its methods."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and not bool(torch.isfinite(local_part(parameter.grad)).all()):
                return True
    return False


def _is_under_scaler() -> bool:
    """Whether a GradScaler has called the step that is being made."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "step" and isinstance(frame.f_locals.get("self"), torch.amp.GradScaler):
            return True
        frame = frame.f_back
    return False
