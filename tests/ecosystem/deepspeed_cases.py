"""DeepSpeed trainings: what the process group carries for ZeRO, its hierarchical partitions, experts and pipelines."""

from __future__ import annotations

from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from training_cases import CLASSES, STEPS, WIDTH, Net, Trained, batch, digest_of

MICRO_BATCHES = 2


def _config(**sections: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 16,
        "steps_per_print": 1 << 30,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **sections,
    }


def _engine(net: nn.Module, config: dict[str, Any], parameters: Any = None) -> Any:
    deepspeed.init_distributed(dist_backend=dist.get_backend(), verbose=False)
    optimizer = torch.optim.AdamW(parameters or net.parameters(), lr=1e-2)
    return deepspeed.initialize(model=net, optimizer=optimizer, config=config)[0]


def zero(stage: int, **more: Any) -> Trained:
    """A ZeRO stage with two micro-batches per step; more: keys of `zero_optimization`."""
    net = Net()
    del net.other_head
    settings = {"stage": stage, "reduce_bucket_size": 20_000, "stage3_param_persistence_threshold": 100} | more
    engine = _engine(net, _config(zero_optimization=settings, gradient_accumulation_steps=MICRO_BATCHES))
    losses = []
    for step in range(STEPS * MICRO_BATCHES):
        x, y = batch(step)
        loss = (engine(x) - y).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    digest = ""
    with deepspeed.zero.GatheredParameters(list(net.parameters()), enabled=stage == 3):
        digest = digest_of(net.parameters())
    engine.destroy()
    return Trained(losses, digest)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from deepspeed.moe.layer import MoE

        torch.manual_seed(11)
        self.first = nn.Linear(WIDTH, WIDTH)
        expert = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
        self.experts = MoE(WIDTH, expert, num_experts=4, ep_size=2, k=1, use_rts=False, min_capacity=8)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, balance, _ = self.experts(self.first(x).unsqueeze(0))
        return self.head(hidden.squeeze(0)), balance


def experts_of_a_site() -> Trained:
    """Two experts on each of two ranks of a site; the other site has the same ones, and they are averaged."""
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split

    net = Experts()
    groups = split({"params": list(net.parameters()), "name": "all"})
    engine = _engine(net, _config(), groups)
    losses = []
    for step in range(STEPS):
        x, y = batch(step)
        output, balance = engine(x)
        loss = (output - y).square().mean() + 0.01 * balance
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    digest = digest_of(net.parameters())
    engine.destroy()
    return Trained(losses, digest)


def pipeline() -> Trained:
    """Two stages, over which the sites divide the layers; more ranks of a site are data-parallel within it."""
    from deepspeed.pipe import PipelineModule

    deepspeed.init_distributed(dist_backend=dist.get_backend(), verbose=False)
    torch.manual_seed(13)
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)]
    net = PipelineModule(layers=layers, num_stages=2, loss_fn=nn.functional.mse_loss, partition_method="uniform")
    engine = _engine(net, _config(gradient_accumulation_steps=4, zero_optimization={"stage": 0}))
    replica = engine.grid.get_data_parallel_rank()
    batches = iter([batch(number, replica) for number in range(4 * STEPS)])
    losses = [engine.train_batch(data_iter=batches).item() for _ in range(STEPS)]
    return Trained(losses, digest_of(net.parameters()))
