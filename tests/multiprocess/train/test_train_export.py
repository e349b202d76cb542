"""The driver leaves its trained model for other programs, and goes on from what it left."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

import torch

from geocomm.train.export.export_record import RECORD, ExportRecord, read_record
from geocomm.train.export.export_run import export_hf
from geocomm.train.export.export_source import Given
from support.exported_models import config_json, stored_tensors
from support.train_ranks import (
    SMALL_MODEL,
    copy_checkpoint,
    entries,
    finish,
    require_refusal,
    require_success,
    run_ranks,
    start_ranks,
)

# One worker: there the ranks are forked from one process, which takes seconds to get ready.
pytestmark = pytest.mark.xdist_group("training")

EXPORTS = ("export.format=hf", "checkpoint.at_end=true", "training.steps=2", "schedule.warmup_steps=1")
GEOCOMM = "distributed.backend=geocomm"
LOCAL = (GEOCOMM, "sync.mode=local", "sync.every=2", "sync.overlap=1", "sync.joint_steps=0")
ALONE, PAIRS = ("a", "b"), ("a", "a", "b", "b")


class Case(NamedTuple):
    """A run of the driver."""

    settings: tuple[str, ...]
    sites: tuple[str, ...] = ALONE


CASES = {
    "zero 0": Case(()),
    "zero 2, bf16": Case(("training.zero_stage=2", "training.precision=bf16")),
    "zero 3": Case(("training.zero_stage=3",)),
    "sync.codec, zero 1": Case((GEOCOMM, "training.zero_stage=1", "sync.codec=int8"), PAIRS),
    "local, zero 3": Case((*LOCAL, "training.zero_stage=3"), PAIRS),
    "zero 1": Case(("training.zero_stage=1",)),
    "zero 2": Case(("training.zero_stage=2",)),
    "zero 0, bf16": Case(("training.precision=bf16",)),
    "zero 3, bf16": Case(("training.zero_stage=3", "training.precision=bf16")),
    "sync.codec, zero 2, bf16": Case((GEOCOMM, "training.zero_stage=2", "training.precision=bf16", "sync.codec=int8")),
    "local, zero 0": Case(LOCAL),
    "local, zero 1": Case((*LOCAL, "training.zero_stage=1"), PAIRS),
    "local, zero 2, bf16": Case((*LOCAL, "training.zero_stage=2", "training.precision=bf16"), PAIRS),
}
QUICK = ("zero 0", "sync.codec, zero 1", "local, zero 3")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in CASES]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders by case; filled by `folder_of`."""
    return {"": tmp_path_factory.mktemp("exported")}


def folder_of(runs: dict[str, Path], name: str) -> Path:
    """Where the run of a case is; it runs when it is first asked for."""
    if name not in runs:
        folder = runs[""] / str(len(runs))
        case = CASES[name]
        ended = run_ranks(folder, [*EXPORTS, *case.settings], sites=case.sites)
        require_success(ended)
        assert "exported to" in ended[0].out
        runs[name] = folder
    return runs[name]


def record_of(folder: Path) -> ExportRecord:
    record = read_record(folder)
    assert record is not None
    return record


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype and torch.equal(first[name], second[name]) for name in first
    )


@pytest.mark.parametrize("name", NAMES)
def test_run_leaves_the_model_that_its_checkpoint_has(runs: dict[str, Path], name: str, tmp_path: Path) -> None:
    folder = folder_of(runs, name)
    (evaluated,) = entries(folder, "eval")
    left = record_of(folder / "run" / "export")
    assert left.held_out is not None
    assert left.held_out.run_loss == evaluated["loss"]
    assert (left.source.step, left.source.sites) == (2, entries(folder, "start")[0]["sites"])
    made = export_hf(folder / "run", tmp_path / "out", Given(), None, 4, print)
    assert made.held_out is not None
    assert made.verify is not None
    assert (made.verify.held_out, made.verify.max_logit_difference, made.verify.argmax_equal) == (True, 0.0, True)
    exact = left.source.precision == "fp32"
    assert made.held_out.loss == pytest.approx(evaluated["loss"], abs=1e-6 if exact else 2e-3)
    assert same(stored_tensors(folder / "run" / "export"), stored_tensors(tmp_path / "out"))
    assert config_json(folder / "run" / "export") == config_json(tmp_path / "out")
    assert (made.source.model_dump() | {"path": ""}) == (left.source.model_dump() | {"path": ""})
    assert (made.dtype, made.parameters, made.data) == (left.dtype, left.parameters, left.data)


@pytest.mark.parametrize("tokenizer", [pytest.param("byte", marks=pytest.mark.slow), "exported"])
def test_a_run_that_starts_from_the_folder_has_its_loss(runs: dict[str, Path], tokenizer: str, tmp_path: Path) -> None:
    folder = folder_of(runs, "zero 0")
    left = folder / "run" / "export"
    shutil.copytree(left, tmp_path / "run" / "export")  # of another run, as many steps long
    settings = [
        "model.overrides={}",
        f"model.path={left}",
        f"data.tokenizer={left if tokenizer == 'exported' else 'byte'}",
        "training.steps=2",
        "optimizer.learning_rate=1e-30",
        "schedule.warmup_steps=1",
        "export.format=hf",
    ]
    require_success(run_ranks(tmp_path, settings))
    assert entries(tmp_path, "eval")[0]["loss"] == entries(folder, "eval")[0]["loss"]
    assert same(stored_tensors(tmp_path / "run" / "export"), stored_tensors(left))
    assert config_json(tmp_path / "run" / "export") == config_json(left)
    assert record_of(tmp_path / "run" / "export").source.path == str(tmp_path / "run")


def test_masters_of_16_bits_are_exported_from_the_checkpoint_on_request(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = folder_of(runs, "zero 2, bf16")
    made = export_hf(folder / "run", tmp_path / "out", Given(), "fp32", 2, print)
    masters, rounded = stored_tensors(tmp_path / "out"), stored_tensors(folder / "run" / "export")
    assert made.dtype == "fp32"
    for name, tensor in masters.items():
        # Some that the run rounds are stored in float32 all the same: what transformers wants so.
        kept = rounded[name].dtype
        assert any(torch.equal(tensor.to(dtype).to(kept), rounded[name]) for dtype in (kept, torch.bfloat16)), name
    assert not all(torch.equal(tensor, rounded[name].float()) for name, tensor in masters.items())


def test_finished_run_that_is_started_again_exports_what_is_not_there(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = folder_of(runs, "zero 3")
    copy_checkpoint(folder, tmp_path, 2)
    settings = [*EXPORTS, *CASES["zero 3"].settings]
    require_success(run_ranks(tmp_path, settings, sites=ALONE))
    made = tmp_path / "run" / "export"
    assert same(stored_tensors(made), stored_tensors(folder / "run" / "export"))
    before = (made / RECORD).stat().st_mtime_ns
    ended = run_ranks(tmp_path, settings, sites=ALONE)
    require_success(ended)
    assert f"exported already; serve it: geocomm serve {made}" in ended[0].out
    assert (made / RECORD).stat().st_mtime_ns == before


def test_run_that_exports_nothing_ends_with_the_command_that_exports_its_checkpoint(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    copy_checkpoint(folder_of(runs, "zero 0"), tmp_path, 2)
    ended = run_ranks(tmp_path, [*EXPORTS, "export.format=none"], sites=ALONE)
    require_success(ended)
    assert f"geocomm export {tmp_path / 'run'} my-model" in ended[0].out
    assert not (tmp_path / "run" / "export").exists()


@pytest.mark.parametrize("stage", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_full_disk_ends_every_rank_and_leaves_no_part(runs: dict[str, Path], tmp_path: Path, stage: int) -> None:
    shutil.copytree(folder_of(runs, "zero 0") / "tokens", tmp_path / "tokens")
    settings = ["export.format=hf", "training.steps=1", "schedule.warmup_steps=0", f"training.zero_stage={stage}"]
    require_refusal(run_ranks(tmp_path, settings, most_file_bytes={0: 60_000}), "rank 0", "not exported")
    assert not list((tmp_path / "run").glob("*export*"))
    assert entries(tmp_path, "end")[0]["complete"] is True


def test_folder_of_something_else_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "run" / "export").mkdir(parents=True)
    (tmp_path / "run" / "export" / "thesis.tex").write_text("")
    require_refusal(run_ranks(tmp_path, ["export.format=hf"]), "rank 0", "export.format=none")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_stopped_run_exports_nothing(tmp_path: Path) -> None:
    processes = start_ranks(tmp_path, ["export.format=hf", "training.steps=3000", "schedule.decay_steps=3000"])
    metrics = tmp_path / "run" / "metrics.jsonl"
    end = time.monotonic() + 100
    while not (metrics.exists() and '"step", ' in metrics.read_text()) and time.monotonic() < end:
        time.sleep(0.1)
    processes[1].send_signal(signal.SIGTERM)
    assert [each.code for each in finish(processes)] == [128 + signal.SIGTERM] * 2
    assert not list((tmp_path / "run").glob("*export*"))


def test_checkpoint_of_a_model_with_overrides_says_itself_which_model_it_is(runs: dict[str, Path]) -> None:
    left = config_json(folder_of(runs, "zero 0") / "run" / "export")
    assert "num_hidden_layers: 2" in SMALL_MODEL
    assert (left["num_hidden_layers"], left["hidden_size"]) == (2, 64)
    assert (left["scoring_func"], left["topk_method"], left["dtype"]) == ("sigmoid", "noaux_tc", "float32")
