"""What a site makes of its own weights when a round's new anchor arrives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from geocomm.core.errors import InvalidArgumentError
from geocomm.core.native import native

CARRY = "carry"
Merge = float | Literal["carry"]


def merge_local(
    merge: Merge,
    local: torch.Tensor | Sequence[torch.Tensor],
    anchor: torch.Tensor,
    local_at_begin: torch.Tensor | None,
) -> None:
    """Turn the site's weights into those after a merge, in place; all are float32 on the CPU, of the same length.

    local: its weights now, after the steps of the overlap: one tensor or several, one after the other. anchor: the new
    one. merge: the weight of `local` in the mean of the two (Streaming DiLoCo, arXiv 2501.18512, takes 0.5); 0 takes
    over the anchor and drops the overlap's steps; "carry" adds what the overlap's steps changed to the anchor, and
    needs the weights as they were when the round began. So each step counts in one delta, however late the result is.
    """
    pieces = [local] if isinstance(local, torch.Tensor) else local
    if merge != CARRY:
        native().outer_blend(pieces, anchor, merge)
    elif local_at_begin is not None:
        native().outer_carry(pieces, anchor, local_at_begin)
    else:
        raise InvalidArgumentError("merge='carry' needs the weights as they were when the round began")
