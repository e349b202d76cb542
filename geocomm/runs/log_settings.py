"""The part of a run's configuration that says what is shown and written."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from geocomm.core.config_section import Section


class LoggingConfig(Section):
    """What is shown and written."""

    every_steps: PositiveInt = Field(10, description="Steps between two lines on a stdout that is no terminal.")
    progress: bool = Field(True, description="Progress bar where stdout is a terminal.")
    tensorboard: bool = Field(True, description="Write TensorBoard event files to `output_dir`/tensorboard.")
