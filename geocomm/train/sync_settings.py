"""The part of a run's configuration that says what crosses between the sites while training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveInt

from geocomm.core.config_section import Section

if TYPE_CHECKING:
    from geocomm.gradients.hook_settings import HookSettings


class SyncConfig(Section):
    """What crosses between the sites while training, and how."""

    mode: Literal["gradients"] = Field("gradients", description="gradients: averaged over all ranks in every step.")
    codec: str | None = Field(
        None,
        description="Preset or codec of the gradients between sites, with error feedback: "
        "balanced, small, int4, …. With ZeRO 1 and 2 the shards are then inside each site, and parameters never cross. "
        "Default: DeepSpeed reduces, with distributed.codec.",
    )
    warmup_steps: Annotated[int, Field(ge=0)] = Field(10, description="First steps whose gradients go exactly.")
    exact: tuple[str, ...] = Field(
        ("norm",), description="Regular expressions; parameters in whose names one is found always go exactly."
    )
    exact_below: Annotated[int, Field(ge=0)] = Field(
        4096, description="Parameters of fewer elements, or of one dimension, go exactly too."
    )
    decay: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        1.0, description="Of what the codec has lost, in each step; 1: nothing is ever lost."
    )
    adaptive: bool = Field(
        True,
        description="Divide what is encoded by each element's usual magnitude. Learned anew after a resume, which then "
        "is not bit for bit.",
    )
    guard: bool = Field(True, description="Go on with a finer preset where error feedback does not keep up.")
    guard_steps: PositiveInt = Field(50, description="Steps between two looks of the guard.")

    def hook_settings(self) -> HookSettings:
        """The settings of what reduces the gradients; imports torch. InvalidArgumentError: impossible or no codec."""
        from geocomm.core.errors import InvalidArgumentError
        from geocomm.gradients.hook_settings import feedback_settings

        if self.codec is None:
            raise InvalidArgumentError("sync.codec is not set: nothing but DeepSpeed reduces the gradients")
        return feedback_settings(
            self.codec,
            self.warmup_steps,
            self.exact,
            self.exact_below,
            self.decay,
            self.guard_steps if self.guard else None,
            adaptive=self.adaptive,
        )
