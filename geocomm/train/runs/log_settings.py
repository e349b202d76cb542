"""The part of a run's configuration that says what is shown and written."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from geocomm.core.settings import Section

TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]


class LoggingConfig(Section):
    """What is shown and written."""

    every_steps: PositiveInt = Field(10, description="Steps between two lines on a stdout that is no terminal.")
    progress: bool = Field(True, description="Progress bar where stdout is a terminal.")
    trackers: list[TrackerName] = Field(
        ["tensorboard"],
        description="Where the numbers go besides `output_dir`: tensorboard, wandb, mlflow, trackio; [] for none.",
    )
    project: str | None = Field(
        None, description="Project (MLflow: experiment) in the trackers; default: the last part of `output_dir`."
    )
