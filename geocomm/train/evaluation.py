"""Loss on held-out text."""

from __future__ import annotations

import math

import deepspeed
import torch
import torch.distributed as dist

from geocomm.data.packing import PackedSequences


def evaluate(
    engine: deepspeed.DeepSpeedEngine, data: PackedSequences, group: dist.ProcessGroup, limit: int, batch_size: int
) -> tuple[float, int]:
    """Mean loss per token over the first `limit` held-out sequences, and how many there were. Collective over `group`,
    whose ranks share the work.

    All ranks run the same number of forward passes, as ZeRO-3 requires; spare ones count for nothing.
    """
    total = min(limit, len(data.held_out_numbers))
    share = data.held_out_share(group.rank(), group.size(), limit)
    rounds = math.ceil(math.ceil(total / group.size()) / batch_size)
    sums = torch.zeros(2, dtype=torch.float64, device=engine.device)
    engine.eval()
    try:
        with torch.no_grad():
            for index in range(rounds):
                numbers = share[index * batch_size : (index + 1) * batch_size]
                rows = torch.from_numpy(data.rows(numbers or [int(data.held_out_numbers[0])])).to(engine.device)
                loss = engine(input_ids=rows, labels=rows).loss
                sums += torch.tensor([len(numbers) * float(loss), len(numbers)], dtype=torch.float64).to(sums)
    finally:
        engine.train()
    dist.all_reduce(sums, group=group)
    loss_sum, count = sums.tolist()
    return loss_sum / count, int(count)
