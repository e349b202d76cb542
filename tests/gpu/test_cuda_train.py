"""The training driver on a GPU that two sites share: DeepSpeed, gradients or local steps, a checkpoint, a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

from support.train_ranks import losses, require_success, run_ranks

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU and a torch built for it"),
    pytest.mark.timeout(300),
]
WAYS = {
    "gradients": ["sync.codec=int8", "training.precision=bf16"],
    "zero1": ["sync.codec=balanced", "training.precision=bf16", "training.zero_stage=1"],
    "local": ["sync.mode=local", "sync.every=4", "sync.exact_below=1000", "sync.deterministic=true"],
}


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS.keys())
def test_driver_trains_on_a_gpu_and_goes_on_after_a_restart(tmp_path: Path, settings: list[str]) -> None:
    common = ["distributed.backend=geocomm", "distributed.device=cuda", "checkpoint.at_end=true", *settings]

    def train(steps: int) -> None:
        # No ranks forked from a process that knows CUDA already.
        require_success(run_ranks(tmp_path, [*common, f"training.steps={steps}"], command=lambda rank: ["env"]))

    train(6)
    train(10)
    found = losses(tmp_path)
    assert sorted(found) == list(range(1, 11))
    assert found[10] < found[1]
