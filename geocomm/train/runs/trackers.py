"""Where the numbers of a run go besides its folder: TensorBoard, Weights & Biases, MLflow, Trackio.

Each library has one small class here, which imports it when it is named and not before.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import Field, PositiveInt
from typing_extensions import override

from geocomm.core.bad_input import BadInput
from geocomm.core.settings import Section
from geocomm.train.runs.run_folder import RunFolder

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


_MLFLOW_PARAMS_AT_ONCE = 100
_WANDB_STEP = "trainer_step"


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker hears of a run when it begins."""

    folder: RunFolder
    project: str
    name: str
    fields: Mapping[str, Any]
    """The configuration: values by dotted names."""


class Tracker(Protocol):
    """One library. Calls may raise what the library raises."""

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Numbers as of optimizer step `step`; a later call may be of an earlier step."""
        ...

    def text(self, name: str, text: str, step: int) -> None:
        """A text in Markdown."""
        ...

    def close(self) -> None:
        """The run is over; once."""
        ...


def require_packages(names: Sequence[TrackerName]) -> None:
    """BadInput where a library is not installed."""
    for name in names:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:  # without one: a folder of that name, such as wandb leaves behind
            raise BadInput(
                f"logging.trackers: '{name}' needs its package: pip install {name}, or remove it from the list"
            )


def open_trackers(config: LoggingConfig, folder: RunFolder, fields: Mapping[str, Any]) -> dict[str, Tracker]:
    """Open the trackers that `config` names. fields: the run's configuration by dotted names. Raises BadInput."""
    require_packages(config.trackers)
    place = folder.path.resolve()
    name = f"{place.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    run = TrackedRun(RunFolder(place), config.project or place.name, name, fields)
    opened: dict[str, Tracker] = {}
    for tracker in dict.fromkeys(config.trackers):
        try:
            with contextlib.redirect_stdout(sys.stderr):  # some greet
                opened[tracker] = _CLASSES[tracker](run)
        except Exception as error:  # each library has its own types
            for other in opened.values():
                other.close()
            said = (str(error).strip().splitlines() or [""])[0]
            raise BadInput(f"logging.trackers: '{tracker}' cannot begin: {type(error).__name__}: {said}") from None
    return opened


class TensorBoard(Tracker):
    """Event files in the run's folder."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        self._writer: Any = SummaryWriter(log_dir=str(run.folder.tensorboard))
        # add_hparams() would begin a second run beside this one.
        values = {name: value if isinstance(value, int | float) else str(value) for name, value in run.fields.items()}
        for summary in hparams(values, {"step/loss": 0.0, "eval/loss": 0.0}):
            self._writer.file_writer.add_summary(summary)

    @override
    def log(self, scalars: Mapping[str, float], step: int) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    @override
    def text(self, name: str, text: str, step: int) -> None:
        self._writer.add_text(name, text, step)

    @override
    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases(Tracker):
    """A run at wandb.ai or your own server; with WANDB_MODE=offline, in the run's folder."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self._run = wandb.init(
            project=run.project, name=run.name, dir=str(run.folder.path), config=dict(run.fields), reinit="create_new"
        )
        # Its own steps may never go back; entries of sites do.
        self._run.define_metric(_WANDB_STEP)
        self._run.define_metric("*", step_metric=_WANDB_STEP)

    @override
    def log(self, scalars: Mapping[str, float], step: int) -> None:
        self._run.log({**scalars, _WANDB_STEP: step})

    @override
    def text(self, name: str, text: str, step: int) -> None:
        self._run.summary[name] = text

    @override
    def close(self) -> None:
        self._run.finish()


class MLflow(Tracker):
    """A run at the server of MLFLOW_TRACKING_URI; without it, in a database in the run's folder."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
        from mlflow.entities import Param  # pyright: ignore[reportMissingImports]
        from mlflow.tracking import is_tracking_uri_set  # pyright: ignore[reportMissingImports]

        uri = None if is_tracking_uri_set() else f"sqlite:///{run.folder.mlflow}"
        self._client = MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(run.project)
        number = experiment.experiment_id if experiment else self._client.create_experiment(run.project)
        self._run = self._client.create_run(number, run_name=run.name).info.run_id
        params = [Param(name, str(value)) for name, value in run.fields.items()]
        for begin in range(0, len(params), _MLFLOW_PARAMS_AT_ONCE):
            self._client.log_batch(self._run, params=params[begin : begin + _MLFLOW_PARAMS_AT_ONCE])

    @override
    def log(self, scalars: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now_ms = round(time.time() * 1000)
        self._client.log_batch(self._run, [Metric(name, value, now_ms, step) for name, value in scalars.items()])

    @override
    def text(self, name: str, text: str, step: int) -> None:
        self._client.set_tag(self._run, name, text)

    @override
    def close(self) -> None:
        self._client.set_terminated(self._run)


class Trackio(Tracker):
    """A run in Trackio's local database (TRACKIO_DIR), or where TRACKIO_SERVER_URL or TRACKIO_SPACE_ID says."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        self._run = trackio.init(project=run.project, name=run.name, config=dict(run.fields), embed=False)
        self._markdown: Callable[[str], Any] = trackio.Markdown

    @override
    def log(self, scalars: Mapping[str, float], step: int) -> None:
        self._run.log(dict(scalars), step=step)

    @override
    def text(self, name: str, text: str, step: int) -> None:
        self._run.log({name: self._markdown(text)}, step=step)

    @override
    def close(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self._run.finish()


_CLASSES: dict[TrackerName, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
    "trackio": Trackio,
}
