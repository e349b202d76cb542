"""Where the files of a run lie. Nothing else puts these paths together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run: `output_dir` of its configuration. Each machine has its own, or all share one."""

    path: Path

    @property
    def config(self) -> Path:
        """The configuration of the last start, with all defaults; rank 0 writes it."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """Entries of rank 0, a line of JSON each."""
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """Events of all ranks that have this folder, a line of JSON each."""
        return self.path / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints, laid out as `checkpoint_folder` says."""
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard's files."""
        return self.path / "tensorboard"

    @property
    def mlflow(self) -> Path:
        """MLflow's database, where no server is named."""
        return self.path / "mlflow.db"

    @property
    def export(self) -> Path:
        """The trained model, for other programs; rank 0 writes it at the end."""
        return self.path / "export"

    @property
    def elastic_site(self) -> Path:
        """Which site of an elastic run the folder is of."""
        return self.path / "elastic-site.json"

    def has_run(self) -> bool:
        """Whether a run has written here."""
        return self.metrics.exists() or self.checkpoints.exists()
