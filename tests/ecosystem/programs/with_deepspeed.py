"""DeepSpeed's ZeRO 2, which chooses the backend of its accelerator, with a checkpoint that is loaded again."""

from __future__ import annotations

import os

import deepspeed
import torch
import torch.distributed as dist
from outcome import leave
from torch import nn

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
}


def main() -> None:
    torch.manual_seed(9)
    net = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 4))
    engine, *_ = deepspeed.initialize(model=net, config=CONFIG)
    losses: list[float] = []
    for step in range(8):
        x = torch.randn(8, 20, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
        loss = nn.functional.cross_entropy(engine(x), x[:, :4].argmax(1))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        if step == 3:
            engine.save_checkpoint(os.environ["OUTCOME"], tag="half")
            engine.load_checkpoint(os.environ["OUTCOME"], tag="half")
    leave(losses, net.parameters())
    deepspeed.comm.destroy_process_group()


main()
