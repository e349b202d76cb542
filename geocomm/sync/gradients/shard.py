"""Which part of a model's gradients a rank reduces."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True)
class Shard:
    """Which part of the model's gradients this rank reduces with its replicas; group: the ranks that hold the parts."""

    index: int = 0
    count: int = 1
    group: dist.ProcessGroup | None = None
