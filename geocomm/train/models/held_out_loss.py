"""The loss on held-out text, as one rank of several adds it up. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from geocomm.data.corpus.packing import Sequences


def held_out_sums(
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    data: Sequences,
    rank: int,
    ranks: int,
    limit: int,
    batch_size: int,
    device: torch.device | None,
) -> torch.Tensor:
    """Sum of the losses and number of this rank's share of the first `limit` held-out sequences, in float64.

    loss_of: mean loss of a batch of token ids. Every rank calls it as often, as ZeRO-3 requires; what it then computes
    beyond its share counts for nothing.
    """
    total = min(limit, data.held_out_count)
    share = data.held_out_share(rank, ranks, limit)
    rounds = math.ceil(math.ceil(total / ranks) / batch_size)
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    with torch.no_grad():
        for index in range(rounds):
            numbers = share[index * batch_size : (index + 1) * batch_size]
            rows = torch.from_numpy(data.rows(numbers or [int(data.held_out(1)[0])])).to(device)
            loss = loss_of(rows)
            sums += torch.tensor([len(numbers) * float(loss), len(numbers)], dtype=torch.float64).to(sums)
    return sums
