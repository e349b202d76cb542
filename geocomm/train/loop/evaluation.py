"""Loss on held-out text."""

from __future__ import annotations

import deepspeed
import torch
import torch.distributed as dist

from geocomm.data.corpus.packing import Sequences
from geocomm.train.models.held_out_loss import held_out_sums


def evaluate(
    engine: deepspeed.DeepSpeedEngine, data: Sequences, group: dist.ProcessGroup, limit: int, batch_size: int
) -> tuple[float, int]:
    """Mean loss per token over the first `limit` held-out sequences, and how many there were. Collective over `group`,
    whose ranks share the work."""

    def loss_of(rows: torch.Tensor) -> torch.Tensor:
        return engine(input_ids=rows, labels=rows).loss

    engine.eval()
    try:
        sums = held_out_sums(loss_of, data, group.rank(), group.size(), limit, batch_size, engine.device)
    finally:
        engine.train()
    dist.all_reduce(sums, group=group)
    loss_sum, count = sums.tolist()
    return loss_sum / count, int(count)
