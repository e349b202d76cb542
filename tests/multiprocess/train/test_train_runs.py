"""Whole runs of the driver over real processes: ZeRO stages, resume, signals, bad input."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

from log_entries import ENTRIES, SITE

from geocomm.metrics.events import KINDS
from geocomm.train.loop.config_text import load_config
from geocomm.train.runs.run_folder import RunFolder
from support.train_ranks import (
    copy_checkpoint,
    entries,
    finish,
    losses,
    require_refusal,
    require_success,
    run_ranks,
    start_ranks,
)

# One worker: there the ranks are forked from one process, which takes seconds to get ready.
pytestmark = pytest.mark.xdist_group("training")


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps of ZeRO-0 in fp32 with a checkpoint after the second."""
    folder = tmp_path_factory.mktemp("plain")
    ended = run_ranks(folder, ["training.steps=4", "checkpoint.every_steps=2", "logging.trackers=[tensorboard]"])
    require_success(ended)
    assert ended[1].out == ""
    return folder


def test_run_metrics_hold_every_step_of_every_site(plain_run: Path) -> None:
    steps = entries(plain_run, "step")
    assert [entry["step"] for entry in steps] == [1, 2, 3, 4]
    for entry in steps:
        assert entry["backend"] == "gloo"
        assert entry["site"] == "site0"
        assert set(entry["sites"]) == {"site0", "site1"}
        assert entry["tokens"] == 2 * 2 * 64 == sum(site["tokens"] for site in entry["sites"].values())
        assert entry["grad_norm"] > 0
        assert entry["step_seconds"] > entry["input_seconds"] > 0
        assert entry["tokens_per_second"] == pytest.approx(entry["tokens"] / entry["step_seconds"])
        assert entry["wire_bytes_sent"] is None
    # The checkpoint after step 2.
    assert [entry["checkpoint_seconds"] > 0 for entry in steps] == [False, False, True, False]
    assert losses(plain_run)[4] < losses(plain_run)[1]
    assert [entry["step"] for entry in entries(plain_run, "eval")] == [4]
    assert entries(plain_run, "end")[0]["complete"] is True
    assert list((plain_run / "run" / "tensorboard").iterdir())


def test_run_metrics_have_the_fields_that_the_reference_lists(plain_run: Path) -> None:
    lines = [json.loads(line) for line in (plain_run / "run" / "metrics.jsonl").read_text().splitlines()]
    kinds = ENTRIES | {kind: {"site", "rank", *fields} for kind, fields in KINDS.items()}
    assert {line["kind"] for line in lines} == {*ENTRIES, "checkpoint"} - {"sites"}  # which local steps have
    for line in lines:
        assert set(line) - {"kind", "time"} == set(kinds[line["kind"]]) - {"sync"}, line["kind"]
    for line in lines:
        if line["kind"] == "step":
            assert all(set(site) == set(SITE) for site in line["sites"].values())


def test_run_folder_has_the_events_of_every_site_and_the_configuration(plain_run: Path) -> None:
    folder = RunFolder(plain_run / "run")
    events = [json.loads(line) for line in folder.events.read_text().splitlines()]
    assert sorted((event["kind"], event["site"], event["rank"], event["step"]) for event in events) == [
        ("checkpoint", site, rank, step) for rank, site in enumerate(("site0", "site1")) for step in (2, 4)
    ]
    assert [event for event in events if event["rank"] == 0] == entries(plain_run, "checkpoint")
    (start,) = entries(plain_run, "start")
    assert load_config(folder.config).model_dump(mode="json") == start["config"]


def _require_exact_resume(whole: Path, folder: Path, assignments: list[str]) -> None:
    copy_checkpoint(whole, folder, 2)
    require_success(run_ranks(folder, [*assignments, "training.steps=4", "checkpoint.resume=required"]))
    resumed = losses(folder)
    assert sorted(resumed) == [3, 4]
    assert {step: losses(whole)[step] for step in resumed} == resumed
    assert entries(whole, "eval")[-1]["loss"] == entries(folder, "eval")[-1]["loss"]


def test_resume_without_zero_continues_bit_for_bit(plain_run: Path, tmp_path: Path) -> None:
    _require_exact_resume(plain_run, tmp_path, [])


@pytest.mark.parametrize(
    ("stage", "precision"),
    [
        (3, "fp32"),
        *[
            pytest.param(stage, precision, marks=pytest.mark.slow)
            for stage, precision in [(1, "fp32"), (2, "fp32"), (0, "bf16"), (1, "bf16"), (2, "bf16"), (3, "bf16")]
        ],
    ],
)
def test_zero_stage_agrees_with_plain_and_resumes_bit_for_bit(
    plain_run: Path, tmp_path: Path, stage: int, precision: str
) -> None:
    settings = [f"training.zero_stage={stage}", f"training.precision={precision}"]
    require_success(run_ranks(tmp_path / "whole", [*settings, "training.steps=4", "checkpoint.every_steps=2"]))
    tolerance = 1e-5 if precision == "fp32" else 1e-2
    assert losses(tmp_path / "whole") == pytest.approx(losses(plain_run), abs=tolerance)
    _require_exact_resume(tmp_path / "whole", tmp_path / "resumed", settings)


@pytest.mark.slow
def test_gradient_accumulation_equals_a_larger_batch(plain_run: Path, tmp_path: Path) -> None:
    settings = ["training.micro_batch_size=1", "training.gradient_accumulation_steps=2", "training.steps=4"]
    require_success(run_ranks(tmp_path, settings))
    assert losses(tmp_path) == pytest.approx(losses(plain_run), abs=1e-5)


@pytest.mark.slow
def test_partitioned_init_trains(plain_run: Path, tmp_path: Path) -> None:
    require_success(run_ranks(tmp_path, ["training.zero_stage=3", "model.partitioned_init=true", "training.steps=4"]))
    assert losses(tmp_path)[1] == pytest.approx(losses(plain_run)[1], abs=0.1)
    assert losses(tmp_path)[4] < losses(tmp_path)[1]


@pytest.mark.slow
def test_resume_with_a_disk_per_site_continues_bit_for_bit(plain_run: Path, tmp_path: Path) -> None:
    for stage in (0, 1, 3):
        folder = tmp_path / str(stage)
        own = {rank: [f"output_dir={folder / f'disk{rank}' / 'run'}"] for rank in range(2)}
        settings = [f"training.zero_stage={stage}", "checkpoint.every_steps=2"]
        require_success(run_ranks(folder, [*settings, "training.steps=2", "evaluation.at_end=false"], per_rank=own))
        assert not list((folder / "disk1" / "run").glob("metrics*"))
        require_success(run_ranks(folder, [*settings, "training.steps=4"], per_rank=own))
        assert losses(folder / "disk0") == pytest.approx(losses(plain_run), abs=1e-5)
        shutil.rmtree(folder / "disk1" / "run" / "checkpoints")
        require_refusal(run_ranks(folder, [*settings, "training.steps=6"], per_rank=own), "rank 1", "checkpoint")


def test_terminated_run_saves_and_a_later_one_goes_on(tmp_path: Path) -> None:
    settings = ["training.steps=3000", "schedule.decay_steps=3000", "checkpoint.every_minutes=1000"]
    processes = start_ranks(tmp_path, settings)
    metrics = tmp_path / "run" / "metrics.jsonl"
    end = time.monotonic() + 100
    while not (metrics.exists() and '"step", ' in metrics.read_text()) and time.monotonic() < end:
        time.sleep(0.1)
    processes[1].send_signal(signal.SIGTERM)
    assert [each.code for each in finish(processes)] == [128 + signal.SIGTERM] * 2
    stopped = entries(tmp_path, "end")[-1]
    assert stopped["complete"] is False
    assert entries(tmp_path, "checkpoint")[-1]["step"] == stopped["step"]


@pytest.mark.parametrize(
    ("settings", "per_rank", "mentions"),
    [
        (["training.stepz=1"], {}, ["training.stepz", "steps"]),
        ([], {1: ["data.source=text", "data.paths=[/absent.txt]"]}, ["rank 1 (site site1)", "/absent.txt"]),
        (["training.micro_batch_size=5000"], {}, ["tokens"]),
        (["distributed.device=cuda"], {}, ["site0"]),
        ([], {1: ["seed=1"]}, ["seed", "rank 1"]),
    ],
)
def test_bad_input_ends_every_rank_with_code_2(
    tmp_path: Path, settings: list[str], per_rank: dict[int, list[str]], mentions: list[str]
) -> None:
    require_refusal(run_ranks(tmp_path, settings, per_rank=per_rank), *mentions)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_checkpoint_of_another_model_is_refused_and_left_alone(plain_run: Path, tmp_path: Path) -> None:
    copy_checkpoint(plain_run, tmp_path, 4)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    ended = run_ranks(tmp_path, ["model.overrides.num_hidden_layers=3", "training.steps=6"])
    require_refusal(ended, "another model", "num_hidden_layers is 2, here 3")
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


OTHER_DAMAGE = ("rank-00001.pt cut", "model_states.pt missing")


@pytest.mark.parametrize(
    "damage", ["rank-00000.pt flipped", *(pytest.param(damage, marks=pytest.mark.slow) for damage in OTHER_DAMAGE)]
)
def test_damaged_checkpoint_is_named_with_the_older_one(plain_run: Path, tmp_path: Path, damage: str) -> None:
    for step in (2, 4):
        copy_checkpoint(plain_run, tmp_path, step)
    shutil.copytree(plain_run / "tokens", tmp_path / "tokens")
    name, how = damage.split()
    (file,) = (tmp_path / "run" / "checkpoints" / "step-00000004").rglob(f"*{name}")
    content = bytearray(file.read_bytes())
    if how == "missing":
        file.unlink()
    else:
        content[: len(content) // 2] = bytes(len(content) // 2)
        file.write_bytes(content if how == "flipped" else content[: len(content) // 3])
    named = "deepspeed" if how == "missing" else file.name
    ended = run_ranks(tmp_path, ["training.steps=6"])
    require_refusal(ended, "checkpoint of step 4 is damaged", named, "Move", "the checkpoint of step 2")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000004")
    require_success(run_ranks(tmp_path, ["training.steps=6"]))


def test_disk_that_fills_up_on_one_rank_ends_all_and_keeps_the_old_checkpoint(plain_run: Path, tmp_path: Path) -> None:
    copy_checkpoint(plain_run, tmp_path, 4)
    shutil.copytree(plain_run / "tokens", tmp_path / "tokens")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}

    settings = ["training.steps=5", "checkpoint.every_steps=1"]
    ended = run_ranks(tmp_path, settings, most_file_bytes={0: 60_000})
    require_refusal(ended, "rank 0", "step 5")
    checkpoints = tmp_path / "run" / "checkpoints"
    assert [path.name for path in checkpoints.glob("*step-*")] == ["step-00000004"]
    assert {path: path.read_bytes() for path in before} == before


def test_disk_too_small_for_a_checkpoint_is_refused_before_training(tmp_path: Path) -> None:
    allowed = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"], check=False)
    if allowed.returncode != 0:
        pytest.skip("needs user namespaces, which this machine does not allow")
    (tmp_path / "run").mkdir()
    mount = f'mount -t tmpfs -o size=300k tmpfs {tmp_path / "run"} && exec "$@"'
    wrapped = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    ended = run_ranks(tmp_path, ["checkpoint.at_end=true"], ranks=1, command=lambda rank: wrapped)
    require_refusal(ended, "MB free")


@pytest.mark.slow
def test_module_under_torchrun_trains(tmp_path: Path) -> None:
    import os
    import sys

    arguments = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "geocomm.train"]
    from support.train_ranks import SMALL_RUN

    for setting in (*SMALL_RUN, f"output_dir={tmp_path / 'run'}", "training.steps=1", "schedule.warmup_steps=0"):
        arguments += ["--set", setting]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    environment.pop("GEOCOMM_SITE", None)
    done = subprocess.run([sys.executable, *arguments], env=environment, timeout=150, check=False)
    assert done.returncode == 0
    assert entries(tmp_path, "start")[0]["sites"] == {"local": 2}


def test_a_finished_run_that_is_started_again_says_so(plain_run: Path, tmp_path: Path) -> None:
    copy_checkpoint(plain_run, tmp_path, 4)
    ended = run_ranks(tmp_path, ["training.steps=4"])
    require_success(ended)
    assert "already at step 4 of 4" in ended[0].out
