"""What the program says of its training steps, for reports: `report_step`."""

from __future__ import annotations

import math
import statistics
import threading
import time
import weakref
from collections import deque
from typing import Any

from geocomm.core.message_log import add_field
from geocomm.metrics import sources

_KEPT = 512
"""Steps that wait for a report; of older ones the totals remain."""
NEWEST = 3
BEFORE = 64
"""Losses from which an alert sees that the loss jumps: the newest, and those before them."""
_DEVIATIONS = 1.4826
"""Standard deviations of a normal distribution in its median absolute deviation."""


class LossWindow:
    """The newest three losses and the 64 before them."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=BEFORE + NEWEST)

    def add(self, loss: float) -> None:
        """The loss of one more step. One that is not finite is another alert's."""
        if math.isfinite(loss):
            self._losses.append(float(loss))

    def numbers(self) -> dict[str, float] | None:
        """What an alert needs; None until the window is full: the first losses after a restart are no measure.

        `least` of the newest three; `median` and `spread`, robust for a standard deviation, of those before.
        """
        if len(self._losses) < BEFORE + NEWEST:
            return None
        losses = list(self._losses)
        before, newest = losses[:BEFORE], losses[BEFORE:]
        median = statistics.median(before)
        spread = _DEVIATIONS * statistics.median(abs(loss - median) for loss in before)
        return {"least": min(newest), "median": median, "spread": spread}


class Training:
    """The steps of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told = False
        self._optimizer: weakref.ref[object] | None = None
        self._begin()

    def _begin(self) -> None:
        self._last: dict[str, Any] = {}
        self._totals: dict[str, float] = {}
        self._steps: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._ended_ns: int | None = None
        self._exposed: float | None = None
        self._losses = LossWindow()

    def optimizer_stepped(self, optimizer: object) -> None:
        """Count a step, where the program tells none and this optimizer was the first to make one."""
        if self._told:
            return
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is optimizer:
            self._step(int(self._last.get("step", 0)) + 1, {}, {})

    def step(self, step: int, numbers: dict[str, float | None], parts: dict[str, float | None]) -> None:
        """Note what the program tells of a step. numbers: of the last alone; parts: what adds up."""
        if not self._told:
            add_field("step", lambda: self._last.get("step"))
            with self._lock:
                self._told = True
                self._begin()
        self._step(step, numbers, parts)

    def _step(self, step: int, numbers: dict[str, float | None], parts: dict[str, float | None]) -> None:
        now_ns, exposed = time.monotonic_ns(), _exposed_seconds()
        with self._lock:
            seconds = parts.pop("seconds", None)
            if seconds is None and self._ended_ns is not None:
                seconds = (now_ns - self._ended_ns) / 1e9
            if exposed is not None:
                parts["exposed_seconds"] = exposed - self._exposed if self._exposed is not None else None
            self._ended_ns, self._exposed = now_ns, exposed
            known = {name: value for name, value in {"seconds": seconds, **parts}.items() if value is not None}
            said = {name: value for name, value in numbers.items() if value is not None}
            for name, value in known.items():
                self._totals[name] = self._totals.get(name, 0) + value
            self._totals["steps"] = self._totals.get("steps", 0) + 1
            self._last = {**self._last, "step": step, "ended_ns": now_ns, **said}
            self._steps.append({"step": step, "ended_ns": now_ns, **known, **said})
            if "loss" in said:
                self._losses.add(said["loss"])

    def evaluated(self, loss: float) -> None:
        """Note the loss on held-out text after the last step. It stays until the next one."""
        with self._lock:
            self._last["held_out_loss"] = loss

    def take(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The last step's numbers with the totals, and the steps since the last call."""
        with self._lock:
            steps = list(self._steps)
            self._steps.clear()
            if not self._last:
                return {}, steps
            return {**self._last, "totals": dict(self._totals), "losses": self._losses.numbers()}, steps


def _exposed_seconds() -> float | None:
    groups = sources.read("groups", None)
    if groups is None:
        return None
    past = sources.read("past groups", {})
    return float(past.get("exposed_seconds", 0.0) + sum(group["exposed_seconds"] for group in groups))


training = Training()
"""This process's."""


def report_step(
    step: int,
    *,
    loss: float | None = None,
    learning_rate: float | None = None,
    grad_norm: float | None = None,
    tokens: int | None = None,
    of_steps: int | None = None,
    seconds: float | None = None,
    input_seconds: float | None = None,
    checkpoint_seconds: float | None = None,
    held_out_loss: float | None = None,
) -> None:
    """Tell the run's telemetry that a training step has ended.

    Without it, telemetry counts the steps of the first optimizer that makes one, and knows neither loss nor tokens. It
    costs some microseconds, and nothing waits. `geocomm train` calls it by itself. Call it on every rank, once a step.

    Args:
        step: Its number.
        loss: Of this rank, as a number: `loss.item()` makes a GPU wait, so give it every tenth step or so.
        learning_rate: Of the step.
        grad_norm: Of the step.
        tokens: That this rank trained on in it.
        of_steps: How many steps the run shall have.
        seconds: That it took; by default the time since the last call.
        input_seconds: Of these, waiting for data.
        checkpoint_seconds: Of these, writing a checkpoint.
        held_out_loss: On text that is not trained on, where it was computed after this step.

    Raises:
        InvalidArgumentError: Something is no number.

    Example:
        After the optimizer's step:

            geocomm.report_step(step, tokens=batch.numel(), input_seconds=waited)
    """
    told = _numbers(
        step=step,
        loss=loss,
        learning_rate=learning_rate,
        grad_norm=grad_norm,
        of_steps=of_steps,
        seconds=seconds,
        tokens=tokens,
        input_seconds=input_seconds,
        checkpoint_seconds=checkpoint_seconds,
        held_out_loss=held_out_loss,
    )
    training.step(
        int(told["step"]),
        {name: told.get(name) for name in ("loss", "learning_rate", "grad_norm", "of_steps")},
        {name: told.get(name) for name in ("seconds", "tokens", "input_seconds", "checkpoint_seconds")},
    )
    if held_out_loss is not None:
        training.evaluated(told["held_out_loss"])


def _numbers(**given: object) -> dict[str, float]:
    """What was given, as numbers: those of numpy and torch as well."""
    found: dict[str, float] = {}
    for name, value in given.items():
        if value is None and name != "step":
            continue
        if isinstance(value, int | float):
            found[name] = value
            continue
        try:
            if isinstance(value, str | bytes):
                raise TypeError
            found[name] = value.item() if hasattr(value, "item") else float(value)  # pyright: ignore
        except (TypeError, ValueError, RuntimeError):
            from geocomm.core.errors import InvalidArgumentError

            raise InvalidArgumentError(
                f"report_step: {name} must be a number, and it is {_shown(value)}; the first argument is the number of "
                "the step: report_step(step, tokens=batch.numel())"
            ) from None
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"a {type(value).__name__}"
