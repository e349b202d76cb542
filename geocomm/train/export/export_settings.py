"""The part of a run's configuration that says in which form the trained model is left."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from geocomm.core.config_section import Section


class ExportConfig(Section):
    """What a complete run leaves in `output_dir`/export."""

    format: Literal["hf", "none"] = Field(
        "hf", description="hf: a Hugging Face folder with the weights and the tokenizer. none: nothing."
    )
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="Type of the exported weights. auto: training.precision."
    )
