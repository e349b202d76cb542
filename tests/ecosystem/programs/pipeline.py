"""A pipeline of two stages, one at each rank, with a group of Gloo beside it for what the host has to say."""

from __future__ import annotations

import torch
import torch.distributed as dist
from outcome import leave
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    host = dist.new_group(backend="gloo")
    torch.manual_seed(4)
    layers = [nn.Sequential(nn.Linear(24, 24), nn.Tanh()) for _ in range(2 * size)]
    part = nn.Sequential(*layers[2 * rank : 2 * rank + 2])
    schedule = ScheduleGPipe(
        PipelineStage(part, rank, size, torch.device("cpu")), n_microbatches=4, loss_fn=nn.functional.mse_loss
    )
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-2)
    losses: list[float] = []
    for step in range(4):
        x = torch.randn(16, 24, generator=torch.Generator().manual_seed(step))
        found: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(x)
        elif rank == size - 1:
            schedule.step(target=x.sin(), losses=found)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        told = [[float(one) for one in found]]
        dist.broadcast_object_list(told, src=size - 1, group=host)
        losses += told[0]
    dist.monitored_barrier(host)
    leave(losses, part.parameters())
    dist.destroy_process_group()


main()
