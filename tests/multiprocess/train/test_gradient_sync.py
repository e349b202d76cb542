"""The driver's gradients with a loss scale: what an overflow does to the residuals, in and out of shards."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

import torch
import torch.distributed as dist
from torch import nn

from support.harness import Ranks, ranks_fixture

# DeepSpeed has an optimizer compiled on import, which nobody uses here: without, every rank starts 5 s of CPU earlier.
ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "GEOCOMM_MIN_COMPRESS_BYTES": "1024", "TORCHDYNAMO_DISABLE": "1"}
STEPS = 60


def _engine(stage: int, codec: str) -> Any:
    """A small net in float16 in its engine, and what reduces its gradients."""
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    from geocomm.train.loop.engine import create_engine
    from geocomm.train.loop.train_config import RunConfig

    # CPUs compute float16; DeepSpeed refuses those that have no instructions of their own for it.
    get_accelerator().is_fp16_supported = lambda: True
    deepspeed.init_distributed(dist_backend="geocomm", auto_mpi_discovery=False)
    sections = {
        "training": {"precision": "fp16", "zero_stage": stage, "initial_scale_power": 26, "micro_batch_size": 32},
        "sync": {"codec": codec, "warmup_steps": 0, "exact_below": 500, "guard_steps": 10},
    }
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(30, 200), nn.GELU(), nn.Linear(200, 200), nn.GELU(), nn.Linear(200, 5))
    return create_engine(RunConfig.model_validate(sections), net)


def _values(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([values for _, values in held]) for name, held in state["residual"].items()}


def _train(stage: int, codec: str) -> dict[str, Any]:
    from geocomm import check_replicas
    from geocomm.train.loop.engine import apply_gradients, loss_scale, set_learning_rate

    trained = _engine(stage, codec)
    engine, sync = trained.engine, trained.sync
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses, followed = [], []
    for number in range(STEPS):
        x = torch.randn(32, 30, generator=generator)
        target = x[:, :5].sin().half()
        if number == STEPS - 10 and dist.get_rank() == 1:
            x = x * 1e5  # beyond float16
        before, scale, skipped = _values(sync.hook.state_dict()), loss_scale(engine), engine.skipped_steps
        set_learning_rate(engine, 3e-3)
        loss = (engine(x.half()) - target).square().mean()
        engine.backward(loss)
        apply_gradients(trained)
        if engine.skipped_steps > skipped:
            after, factor = _values(sync.hook.state_dict()), loss_scale(engine) / scale
            same = before.keys() == after.keys() and all(
                torch.equal(after[name], values * factor) for name, values in before.items()
            )
            followed.append((bool(before), factor, same))
        else:
            losses.append(float(loss.detach()))
        check_replicas(engine.module)
    return {"losses": losses, "followed": followed, "stats": sync.summary(), "scale": loss_scale(engine)}


# One group of processes for both stages: to import DeepSpeed takes longer than the training.
ranks = ranks_fixture({"2+2": ["a", "a", "b", "b"]}, environment=ENVIRONMENT, time_limit=200, trains=True)


@pytest.mark.parametrize("stage", [1, 2])
def test_overflow_puts_residuals_back_and_they_follow_the_scale(ranks: Ranks, stage: int) -> None:
    results = ranks.run(_train, stage, "balanced")
    for result in results:
        followed = result["followed"]
        assert all(same for _, _, same in followed)
        assert any(factor == 0.5 for had_residual, factor, _ in followed if had_residual)
        assert result["stats"]["skipped_steps"] == len(followed) == results[0]["stats"]["skipped_steps"]
        assert result["stats"]["fallbacks"] == 0
        assert sum(result["losses"][-8:]) < 0.7 * sum(result["losses"][:8])
