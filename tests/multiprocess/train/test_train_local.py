"""The driver with local steps over two sites: equal anchors, resume, signals, refusals."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

import torch
from log_entries import ENTRIES, SITE_REPORT

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

LOCAL = (
    "distributed.backend=geocomm",
    "sync.mode=local",
    "sync.every=4",
    "sync.overlap=2",
    "sync.fragments=2",
    "sync.exact_below=1000",
    "sync.deterministic=true",
    "training.steps=10",
    "checkpoint.at_end=true",
    "checkpoint.keep=10",
)
SAVED = 6  # a round is in flight there: fragment 1 begins after steps 2, 6 and 10 of those after the joint ones
SITES = ("a", "a", "b")


def _own_disks(folder: Path, sites: tuple[str, ...]) -> dict[int, list[str]]:
    return {rank: [f"output_dir={folder / f'disk-{site}' / 'run'}"] for rank, site in enumerate(sites)}


def _checkpoint(folder: Path, step: int) -> Path:
    return folder / "run" / "checkpoints" / f"step-{step:08d}"


def _anchor(folder: Path, step: int) -> dict[str, Any]:
    path = _checkpoint(folder, step) / "deepspeed" / "mp_rank_00_model_states.pt"
    return torch.load(path, weights_only=False)["module"]


def _rank_state(folder: Path, step: int, rank: int) -> dict[str, Any]:
    return torch.load(_checkpoint(folder, step) / f"rank-{rank:05d}.pt", weights_only=True)["local"]


def _equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Of the parameters that both have: a model's state has buffers, too."""
    both = first.keys() & second.keys()
    assert len(both) > 10
    return all(torch.equal(first[name], second[name]) for name in both)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten steps, the first two joint, with a checkpoint after the sixth; a disk for each site."""
    folder = tmp_path_factory.mktemp("local")
    settings = [*LOCAL, f"checkpoint.every_steps={SAVED}", f"evaluation.every_steps={SAVED}"]
    require_success(run_ranks(folder, settings, sites=SITES, per_rank=_own_disks(folder, SITES)))
    return folder


def test_sites_train_weights_of_their_own_and_share_the_anchor(whole: Path) -> None:
    at_a, at_b = whole / "disk-a", whole / "disk-b"
    assert _equal(_anchor(at_a, SAVED), _anchor(at_b, SAVED))
    own = [_rank_state(disk, SAVED, rank) for rank, disk in enumerate((at_a, at_a, at_b))]
    assert _equal(own[0]["weights"], own[1]["weights"])
    assert not _equal(own[0]["weights"], own[2]["weights"])
    assert not _equal(own[0]["weights"], _anchor(at_a, SAVED))
    assert all(len(state["outer"]["in_flight"]) == 1 for state in own)
    ended = [_rank_state(disk, 10, rank) for rank, disk in enumerate((at_a, at_a, at_b))]
    assert all(_equal(state["weights"], _anchor(at_a, 10)) and state["outer"] is None for state in ended)
    assert _equal(_anchor(at_a, 10), _anchor(at_b, 10))


def test_metrics_tell_of_rounds_and_of_both_sites(whole: Path) -> None:
    disk = whole / "disk-a"
    steps = entries(disk, "step")
    assert [entry["sync"]["joint"] for entry in steps] == [True] * 2 + [False] * 8
    assert [entry["sync"]["rounds"] for entry in steps[2:]] == [0, 0, 0, 1, 1, 2, 2, 3]
    assert steps[-1]["sync"]["delta_norm"] > 0 < steps[-1]["sync"]["residual_norm"]
    assert all(set(entry["sites"]) == {"a"} and entry["tokens"] == 2 * 2 * 64 for entry in steps)
    told = entries(disk, "sites")
    for site, ranks in (("a", 2), ("b", 1)):
        reports = [entry["sites"][site] for entry in told]
        assert sum(report["steps"] for report in reports) == 8  # those of the ninth come after the last exchange began
        assert all(set(report) == set(SITE_REPORT) and report["ranks"] == ranks for report in reports)
    assert all(set(entry) - {"kind", "time"} == set(ENTRIES["sites"]) for entry in told)
    assert losses(disk)[10] < losses(disk)[1]
    assert [entry["step"] for entry in entries(disk, "eval")] == [SAVED, 10]


def test_resumed_run_has_the_bits_of_one_that_was_not_interrupted(whole: Path, tmp_path: Path) -> None:
    for disk in ("disk-a", "disk-b"):
        copy_checkpoint(whole / disk, tmp_path / disk, SAVED)
    settings = [*LOCAL, "checkpoint.resume=required"]
    require_success(run_ranks(tmp_path, settings, sites=SITES, per_rank=_own_disks(tmp_path, SITES)))
    before, after = whole / "disk-a", tmp_path / "disk-a"
    assert losses(after) == {step: loss for step, loss in losses(before).items() if step > SAVED}
    assert entries(after, "eval")[-1]["loss"] == entries(before, "eval")[-1]["loss"]
    for disk in ("disk-a", "disk-b"):
        assert _equal(_anchor(tmp_path / disk, 10), _anchor(whole / disk, 10))


def test_other_sites_go_on_from_the_anchor(whole: Path, tmp_path: Path) -> None:
    copy_checkpoint(whole / "disk-a", tmp_path, SAVED)
    ended = run_ranks(tmp_path, [*LOCAL, "training.steps=8"], sites=("a", "c"))
    require_success(ended)
    assert "begin anew from its weights" in ended[0].out
    assert losses(tmp_path)[8] < losses(whole / "disk-a")[2]


def test_checkpoint_is_refused_with_other_rounds(whole: Path, tmp_path: Path) -> None:
    for disk in ("disk-a", "disk-b"):
        copy_checkpoint(whole / disk, tmp_path / disk, SAVED)
    ended = run_ranks(tmp_path, [*LOCAL, "sync.every=5"], sites=SITES, per_rank=_own_disks(tmp_path, SITES))
    assert [each.code for each in ended] == [2] * 3
    assert "every was 4 when the state was saved, and is 5" in ended[0].err


@pytest.mark.slow  # test_local_zero.py has the engines of such sites, and their checkpoints
def test_sites_with_shards_of_16_bits_share_the_anchor_and_resume_with_equal_bits(tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    settings = [*LOCAL, "training.zero_stage=3", "training.precision=bf16"]
    saves = f"checkpoint.every_steps={SAVED}"
    require_success(run_ranks(whole, [*settings, saves], sites=SITES, per_rank=_own_disks(whole, SITES)))
    for disk in ("disk-a", "disk-b"):
        copy_checkpoint(whole / disk, resumed / disk, SAVED)
    required = "checkpoint.resume=required"
    require_success(run_ranks(resumed, [*settings, required], sites=SITES, per_rank=_own_disks(resumed, SITES)))
    before, after = whole / "disk-a", resumed / "disk-a"
    assert [entry["sync"]["joint"] for entry in entries(before, "step")] == [False] * 10
    assert losses(after) == {step: loss for step, loss in losses(before).items() if step > SAVED}
    for step in (SAVED, 10):
        at_a, at_b = (_merged_masters(whole / disk, step) for disk in ("disk-a", "disk-b"))
        assert _equal(at_a, at_b)
    assert _equal(_merged_masters(after, 10), _merged_masters(before, 10))


def _merged_masters(folder: Path, step: int) -> dict[str, Any]:
    """The anchor, as DeepSpeed's own tool makes it of the shards."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    return get_fp32_state_dict_from_zero_checkpoint(str(_checkpoint(folder, step)), "deepspeed")


@pytest.mark.parametrize("late", ["waits", "trains on"])
def test_signal_at_one_site_stops_all_after_the_same_step(tmp_path: Path, late: str) -> None:
    settings = [
        *LOCAL,
        f"sync.deterministic={'true' if late == 'waits' else 'false'}",
        "training.steps=100000",
        "schedule.decay_steps=100000",
    ]
    processes = start_ranks(tmp_path, settings, sites=("a", "b"), per_rank=_own_disks(tmp_path, ("a", "b")))
    metrics = tmp_path / "disk-a" / "run" / "metrics.jsonl"
    end = time.monotonic() + 100
    while not (metrics.exists() and '"joint": false' in metrics.read_text()) and time.monotonic() < end:
        time.sleep(0.1)
    processes[1].send_signal(signal.SIGTERM)
    assert [each.code for each in finish(processes)] == [128 + signal.SIGTERM] * 2
    (stopped,) = entries(tmp_path / "disk-a", "end")
    step = stopped["step"]
    assert stopped["complete"] is False
    assert [entry["step"] for entry in entries(tmp_path / "disk-a", "checkpoint")] == [step]
    states = [_rank_state(tmp_path / f"disk-{site}", step, rank)["outer"] for rank, site in enumerate("ab")]
    assert states[0]["step"] == states[1]["step"] == step - 2
    assert states[0]["next_round"] == states[1]["next_round"]


def test_what_only_the_model_shows_to_be_wrong_ends_every_rank_with_code_2(tmp_path: Path) -> None:
    ended = run_ranks(tmp_path, [*LOCAL, "sync.fragments=1000"], sites=("a", "b"))
    require_refusal(ended, "sync.mode local", "fragments is 1000")
