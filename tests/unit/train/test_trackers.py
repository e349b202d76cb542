"""Trackers: each library for real where it is installed, without a network; what goes to them; those that fail."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from geocomm.core.bad_input import BadInput
from geocomm.train.runs import tracker_threads, trackers
from geocomm.train.runs.run_folder import RunFolder
from geocomm.train.runs.tracker_threads import TrackerThreads
from geocomm.train.runs.trackers import LoggingConfig, Tracker, TrackerName, open_trackers, require_packages

_FIELDS = {"training.steps": 3, "optimizer.learning_rate": 1e-3, "data.paths": ["a"], "sync.codec": None}
_VERDICT = "- complete after 3 steps"


def _track(name: TrackerName, folder: Path) -> None:
    """A whole run: numbers of two steps, one out of order, and a text."""
    config = LoggingConfig(trackers=[name], project="the-project")
    opened = open_trackers(config, RunFolder(folder), _FIELDS)
    assert list(opened) == [name]
    tracker = opened[name]
    tracker.log({"step/loss": 3.5, "site-paris/tokens_per_second": 7.0}, 1)
    tracker.log({"step/loss": 2.5}, 2)
    tracker.log({"sites/tokens_per_second": 9.0, "step/grad_norm": float("nan")}, 1)
    tracker.text("verdict", _VERDICT, 3)
    tracker.close()


def test_tensorboard_keeps_numbers_text_and_configuration(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    _track("tensorboard", tmp_path)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("step/loss")] == [(1, 3.5), (2, 2.5)]
    (text,) = events.Tensors("verdict/text_summary")
    assert text.tensor_proto.string_val == [_VERDICT.encode()]
    plugin = events.SummaryMetadata("_hparams_/session_start_info").plugin_data
    assert b"training.steps" in plugin.content
    assert [each for each in (tmp_path / "tensorboard").iterdir() if each.is_dir()] == []  # no second run


def test_wandb_offline_keeps_numbers_text_and_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", exc_type=ImportError)
    monkeypatch.setenv("WANDB_MODE", "offline")
    _track("wandb", tmp_path)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    written = file.read_bytes()
    for expected in (b"the-project", b"training.steps", b"step/loss", b"3.5", b"trainer_step", _VERDICT.encode()):
        assert expected in written


def test_mlflow_in_the_run_folder_keeps_numbers_text_and_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", exc_type=ImportError)
    pytest.importorskip("alembic")  # mlflow-skinny has no database
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for _ in range(2):  # the second run is in the same experiment
        _track("mlflow", tmp_path)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("the-project")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert [run.info.status for run in runs] == ["FINISHED"] * 2
    losses = client.get_metric_history(runs[0].info.run_id, "step/loss")
    assert [(each.step, each.value) for each in losses] == [(1, 3.5), (2, 2.5)]
    assert runs[0].data.params["data.paths"] == "['a']"
    assert runs[0].data.tags["verdict"] == _VERDICT


def test_trackio_keeps_numbers_text_and_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("trackio") is None:
        pytest.skip("trackio is not installed")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported, for the first time here
    _track("trackio", tmp_path / "run")
    import trackio  # pyright: ignore[reportMissingImports]
    from trackio.sqlite_storage import SQLiteStorage  # pyright: ignore[reportMissingImports]

    (run,) = trackio.Api().runs("the-project")
    assert run.config["training.steps"] == 3
    rows = SQLiteStorage.get_logs("the-project", run.name)
    assert [(row["step"], row["step/loss"]) for row in rows if "step/loss" in row] == [(1, 3.5), (2, 2.5)]
    assert _VERDICT in [row["verdict"]["_value"] for row in rows if "verdict" in row]
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_missing_package_is_named_with_the_command(
    name: TrackerName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()  # such as wandb leaves behind
    real = importlib.util.find_spec

    def only_the_folder(module: str) -> Any:
        spec = importlib.util.spec_from_loader(module, None)
        assert spec is not None
        return spec if module == name else real(module)

    for find in (lambda module: None, only_the_folder):
        monkeypatch.setattr(trackers.importlib.util, "find_spec", find)
        with pytest.raises(BadInput, match=f"pip install {name}"):
            require_packages([name])


def test_tracker_that_cannot_begin_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").touch()  # in the way of its folder
    with pytest.raises(BadInput, match=r"logging\.trackers: 'tensorboard' cannot begin"):
        open_trackers(LoggingConfig(trackers=["tensorboard"]), RunFolder(tmp_path), {})


def test_no_trackers_are_fine(tmp_path: Path) -> None:
    assert open_trackers(LoggingConfig(trackers=[]), RunFolder(tmp_path), {}) == {}


class _Recorder:
    """Does `on_log` at each number."""

    def __init__(self, on_log: Callable[[int], None] = lambda step: None) -> None:
        self._on_log = on_log
        self.seen: list[Any] = []

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        self._on_log(step)
        self.seen.append(step)

    def text(self, name: str, text: str, step: int) -> None:
        self.seen.append(text)

    def close(self) -> None:
        self.seen.append("closed")


def _run(trackers_by_name: Mapping[str, Tracker]) -> None:
    together = TrackerThreads(trackers_by_name)
    for step in (1, 2, 3):
        together.log({"x": 1.0}, step)
    together.text("verdict", _VERDICT, 3)
    together.close()


def test_one_that_fails_is_left_out_with_one_line_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(step: int) -> None:
        if step == 2:
            raise ConnectionError("no route to host\nmore lines")

    good, bad = _Recorder(), _Recorder(fail)
    _run({"mlflow": bad, "tensorboard": good})
    assert good.seen == [1, 2, 3, _VERDICT, "closed"]
    assert bad.seen == [1]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("geocomm train: logging.trackers: 'mlflow' failed, and is left out")
    assert "ConnectionError: no route to host" in line


def test_one_that_hangs_holds_up_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tracker_threads, "_CLOSE_SECONDS", 0.5)
    answer = threading.Event()
    good, hanging = _Recorder(), _Recorder(lambda step: answer.wait() and None)

    def monotonic() -> float:
        """Half a second begins once the good one is done, however slow this machine is."""
        end = time.monotonic() + 60
        while good.seen[-1:] != ["closed"]:
            assert time.monotonic() < end
            time.sleep(0.01)
        return time.monotonic()

    monkeypatch.setattr(tracker_threads, "time", SimpleNamespace(monotonic=monotonic))
    _run({"tensorboard": good, "wandb": hanging})
    assert hanging.seen == []  # its first call has not returned
    assert good.seen == [1, 2, 3, _VERDICT, "closed"]
    (line,) = capsys.readouterr().err.splitlines()
    assert "'wandb' did not end within 0.5 s" in line
    answer.set()


def test_one_that_falls_behind_is_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tracker_threads, "_MOST_WAITING", 2)
    answer = threading.Event()
    _run({"wandb": _Recorder(lambda step: answer.wait(60) and None)})
    answer.set()
    (line,) = capsys.readouterr().err.splitlines()
    assert "'wandb' is 2 calls behind" in line
