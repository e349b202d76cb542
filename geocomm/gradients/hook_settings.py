"""What a hook is given: codecs by step, what stays exact, and which part of the gradients it reduces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.errors import InvalidArgumentError, UnsupportedError

EXACT = "none"
"""The codec that loses nothing."""


@dataclass(frozen=True)
class HookSettings:
    """What the hooks were given; schedule: (first step, codec), ascending, from step 0 on."""

    schedule: tuple[tuple[int, str], ...]
    exact: tuple[str, ...]
    exact_below: int
    decay: float
    guard_steps: int | None
    momentum: float = 0.0
    adaptive: bool = False

    @property
    def last_codec(self) -> str:
        """The codec that the schedule leads to."""
        return self.schedule[-1][1]

    def keeps_exact(self, name: str, parameter: torch.Tensor) -> bool:
        """Whether a parameter of this name and size always goes exactly."""
        small = parameter.dim() <= 1 or parameter.numel() < self.exact_below
        return small or any(re.search(pattern, name) for pattern in self.exact)

    def validate(self) -> None:
        """Raise InvalidArgumentError for values that cannot be."""
        for _, codec in self.schedule:
            codec_spec(codec)
        if not 0 <= self.decay <= 1:
            raise InvalidArgumentError(f"decay is {self.decay}; it must be from 0 to 1")
        if not 0 <= self.momentum < 1:
            raise InvalidArgumentError(f"momentum is {self.momentum}; it must be from 0 on and below 1")
        if self.guard_steps is not None and self.guard_steps < 1:
            raise InvalidArgumentError(f"guard_steps is {self.guard_steps}; it must be 1 or more")
        for pattern in self.exact:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InvalidArgumentError(f"exact: {pattern!r} is not a regular expression: {error}") from error


def feedback_settings(
    codec: str,
    warmup_steps: int,
    exact: Sequence[str],
    exact_below: int,
    decay: float,
    guard_steps: int | None,
    *,
    adaptive: bool = True,
) -> HookSettings:
    """The settings of a hook with one codec after its exact steps. Raises InvalidArgumentError."""
    if warmup_steps < 0:
        raise InvalidArgumentError(f"warmup_steps is {warmup_steps}; it must be 0 or more")
    schedule = ((0, EXACT), (warmup_steps, codec)) if warmup_steps else ((0, codec),)
    return HookSettings(schedule, tuple(exact), exact_below, decay, guard_steps, adaptive=adaptive)


def require_devices(what: str, devices: Iterable[torch.device]) -> None:
    """Raise UnsupportedError for parameters that are neither on CPUs nor on CUDA devices, or on both."""
    found = sorted({device.type for device in devices})
    if len(found) > 1 or not set(found) <= {"cpu", "cuda"}:
        raise UnsupportedError(
            f"{what} takes parameters that are all on CPUs or all on CUDA devices, not on {', '.join(found)}; without "
            "a hook the codec of the process group compresses their gradients (geocomm.Options(codec='int8'))"
        )


@dataclass(frozen=True)
class Shard:
    """Which part of the model's gradients this rank reduces with its replicas; group: the ranks that hold the parts."""

    index: int = 0
    count: int = 1
    group: dist.ProcessGroup | None = None
