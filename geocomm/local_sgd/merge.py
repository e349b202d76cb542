"""What a site makes of its own weights when a round's new anchor arrives."""

from __future__ import annotations

from typing import Literal

import torch

from geocomm.core.errors import InvalidArgumentError
from geocomm.local_sgd.cache_chunks import cache_chunks

CARRY = "carry"
Merge = float | Literal["carry"]


def check_merge(merge: Merge) -> None:
    """Raise InvalidArgumentError for a merge that there is not."""
    if merge != CARRY and (isinstance(merge, str) or not 0 <= merge < 1):
        raise InvalidArgumentError(f"merge is {merge!r}; it must be from 0 on and below 1, or '{CARRY}'")


def merge_local(merge: Merge, local: torch.Tensor, anchor: torch.Tensor, local_at_begin: torch.Tensor | None) -> None:
    """Turn the site's weights into those after a merge, in place; all are float32, 1-D and of the same length.

    local: its weights now, after the steps of the overlap. anchor: the new one. merge: "carry" adds what the overlap's
    steps changed to the anchor, and needs the weights as they were when the round began: so each step counts in one
    delta, however late the result is. A number is the weight of `local` in the mean of the two (Streaming DiLoCo,
    arXiv 2501.18512, takes 0.5); 0 takes over the anchor and drops the overlap's steps.
    """
    if merge == CARRY and local_at_begin is None:
        raise InvalidArgumentError("merge='carry' needs the weights as they were when the round began")
    for span in cache_chunks(local.numel()):
        own, theirs = local[span], anchor[span]
        if local_at_begin is not None and isinstance(merge, str):
            own.sub_(local_at_begin[span]).add_(theirs)
        elif merge and not isinstance(merge, str):
            own.mul_(merge).add_(theirs.mul(1 - merge))
        else:
            own.copy_(theirs)
