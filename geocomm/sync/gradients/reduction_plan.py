"""What a reducer goes by: the settings that a hook was given, the codec of each step, and which part of
the gradients a rank has."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from geocomm.sync.gradients.hook_settings import HookSettings


@dataclass(frozen=True)
class GradientShard:
    """Which part of the model's gradients this rank reduces with its replicas; group: the ranks that hold the parts."""

    index: int = 0
    count: int = 1
    group: dist.ProcessGroup | None = None


EXACT = "none"
"""The codec that loses nothing."""


@dataclass(frozen=True)
class ReductionPlan:
    """What gradients are reduced with, step by step."""

    settings: HookSettings
    schedule: tuple[tuple[int, str], ...]
    """First step and codec, ascending, from step 0 on."""
    momentum: float = 0.0
    """That of the velocity which is compressed in place of the gradient (`dgc_hook`); 0: the gradient itself is."""

    @classmethod
    def of(cls, settings: HookSettings) -> ReductionPlan:
        """One codec after the exact steps."""
        warmup = ((0, EXACT),) if settings.warmup_steps else ()
        return cls(settings, (*warmup, (settings.warmup_steps, settings.codec)))

    @property
    def last_codec(self) -> str:
        """The codec that the schedule leads to."""
        return self.schedule[-1][1]
