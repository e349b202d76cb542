"""The part of a run's configuration that says what crosses between the sites while training: a section by `mode`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from geocomm.codecs.codec_settings import Codec
from geocomm.core.bad_input import did_you_mean
from geocomm.core.settings import Section
from geocomm.sync.gradients.hook_settings import HookSettings
from geocomm.sync.local_steps.settings.local_settings import LocalSettings, Steps


class GradientSyncConfig(HookSettings):
    """Gradients are averaged over all ranks in every step."""

    if not TYPE_CHECKING:  # the document that it is part of says where a wrong value stands
        __init__ = Section.__init__

    mode: Literal["gradients"] = "gradients"
    """gradients: averaged over all ranks in every step. local: local steps."""
    codec: Codec | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Preset or codec, with error feedback, for the gradients between sites: balanced, small, int4, …. With ZeRO 1 and
    2 the shards are then inside each site, and parameters never cross. Default: DeepSpeed reduces, with
    distributed.codec."""


class LocalSyncConfig(LocalSettings):
    """Each site trains by itself, and the sites average their weights now and then."""

    if not TYPE_CHECKING:
        __init__ = Section.__init__

    mode: Literal["local"] = "local"
    """gradients: averaged over all ranks in every step. local: local steps."""
    weights: Literal["steps", "tokens"] = "tokens"
    """What a site's delta counts by: its optimizer steps, or its tokens."""
    joint_steps: Steps = "auto"
    """First steps with gradients averaged over all ranks. auto: schedule.warmup_steps, but 0 with ZeRO 3, and with ZeRO
    1 and 2 at sites of unequal size, where there can be none."""


MODES: dict[str, type[HookSettings | LocalSettings]] = {"gradients": GradientSyncConfig, "local": LocalSyncConfig}


def _of_one_mode(values: Any) -> Any:
    """Say the mode where it goes without saying; refuse what belongs to another one."""
    if not isinstance(values, Mapping):
        return values
    mode = values.get("mode", "gradients")
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; it must be one of {', '.join(MODES)}{did_you_mean(str(mode), MODES)}")
    for other, section in MODES.items():
        if strangers := [
            name for name in values if name in section.model_fields and name not in MODES[mode].model_fields
        ]:
            raise ValueError(
                f"mode {mode} has no {', '.join(map(repr, strangers))}; mode {other} has: remove "
                f"{'these fields' if strangers[1:] else 'the field'}, or set sync.mode={other}"
            )
    return {"mode": mode, **values}


SyncConfig = Annotated[GradientSyncConfig | LocalSyncConfig, Field(discriminator="mode"), BeforeValidator(_of_one_mode)]
