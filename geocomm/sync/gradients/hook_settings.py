"""What a reducer of gradients goes by.

`HookSettings` is what a user gives: the argument of `geocomm.ddp_hook`, and `sync` of a run's configuration. A
`ReductionPlan` has the codec of each step, and a `GradientShard` says which part of the gradients a rank has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from geocomm.codecs.codec_settings import Codec, CodecSettings

if TYPE_CHECKING:
    import torch.distributed as dist


class HookSettings(CodecSettings):
    """How gradients cross between the sites: the settings of `geocomm.ddp_hook` and `geocomm.fsdp_hook`.

    All ranks need equal ones.

    Raises:
        InvalidArgumentError: A value is invalid. The message names the field, and what it may be.
        TypeError: There is no field of that name; the message offers the nearest one.

    Example:
        A fifteenth to a twentieth of the bytes after 50 exact steps:

            hook = geocomm.ddp_hook(model, geocomm.HookSettings(codec="small", warmup_steps=50))
    """

    codec: Codec = "balanced"
    """Preset or codec string for the gradients between sites, with error feedback."""
    warmup_steps: Annotated[int, Field(ge=0)] = 10
    """First steps whose gradients go exactly."""
    decay: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Fraction of the stored error that each step keeps, 0 to 1; 1 keeps all of it."""
    adaptive: bool = True
    """Divide what is encoded by each element's usual magnitude, so that the codec's error does not drown small
    gradients. It takes two more float32 per element, and is learned anew after a resume, which then is not bit for
    bit. Top-k codecs and float16 gradients go without."""
    guard: bool = True
    """Change to the next finer preset, on all ranks in the same step, where the stored error grows."""
    guard_steps: Annotated[int, Field(ge=1)] = 50
    """Steps between two looks of the guard."""

    @classmethod
    def of(cls, given: HookSettings | str) -> HookSettings:
        """Let the name of a codec stand for settings.

        Args:
            given: Settings, or the codec of settings whose other fields are at their defaults.

        Returns:
            The settings.
        """
        return cls(codec=given) if isinstance(given, str) else given


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

    @classmethod
    def of(cls, settings: HookSettings) -> ReductionPlan:
        """One codec after the exact steps."""
        warmup = ((0, EXACT),) if settings.warmup_steps else ()
        return cls(settings, (*warmup, (settings.warmup_steps, settings.codec)))

    @property
    def last_codec(self) -> str:
        """The codec that the schedule leads to."""
        return self.schedule[-1][1]
