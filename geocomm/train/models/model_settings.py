"""The part of a run's configuration that says which model is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from geocomm.core.settings import Section


class ModelConfig(Section):
    """Which model is trained."""

    preset: str = Field("tiny", description="DeepSeek-V3 architecture in a named size; see the table of presets.")
    path: Path | None = Field(
        None,
        description="Folder of a local transformers checkpoint (config.json, weights) to start from; beats `preset`.",
    )
    overrides: dict[str, Any] = Field(
        default_factory=dict,
        description="Fields of the transformers configuration to replace, for example {num_hidden_layers: 2}.",
    )
    partitioned_init: bool = Field(
        False,
        description="With ZeRO-3 and a preset: build the model already partitioned, for models larger than one "
        "host's memory. The initial weights then come from other random draws.",
    )
    gradient_checkpointing: bool = Field(False, description="Recompute activations in backward to save memory.")
