"""The driver with Muon, in both modes of sync."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

import torch

from support.train_ranks import copy_checkpoint, entries, losses, require_success, run_ranks

pytestmark = pytest.mark.xdist_group("training")

COMMON = (
    "distributed.backend=geocomm",
    "optimizer.name=muon",
    "training.steps=6",
    "checkpoint.every_steps=4",
    "checkpoint.at_end=true",
    "checkpoint.keep=10",
)
LOCAL = ("sync.mode=local", "sync.every=2", "sync.deterministic=true", "training.precision=bf16")
GRADIENTS = ("sync.codec=int8", "sync.warmup_steps=1", "sync.exact_below=1000", "sync.adaptive=false")


def _model(folder: Path) -> dict[str, Any]:
    path = folder / "run" / "checkpoints" / "step-00000006" / "deepspeed" / "mp_rank_00_model_states.pt"
    return torch.load(path, weights_only=False)["module"]


# test_muon_sites.py has local steps with Muon.
@pytest.mark.parametrize(
    "mode", [pytest.param(LOCAL, id="local", marks=pytest.mark.slow), pytest.param(GRADIENTS, id="gradients")]
)
def test_run_with_muon_learns_and_has_the_same_bits_after_a_resume(tmp_path: Path, mode: tuple[str, ...]) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    require_success(run_ranks(whole, [*COMMON, *mode]))
    assert losses(whole)[6] < losses(whole)[1]
    if mode is LOCAL:
        assert entries(whole, "step")[-1]["sync"]["rounds"] > 0
    copy_checkpoint(whole, resumed, 4)
    require_success(run_ranks(resumed, [*COMMON, *mode, "checkpoint.resume=required"]))
    assert losses(resumed)[6] == losses(whole)[6]
    here, there = _model(whole), _model(resumed)
    assert all(torch.equal(here[name], there[name]) for name in here)
