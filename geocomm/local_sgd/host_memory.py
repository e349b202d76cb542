"""Host memory for the outer state, and for what is copied to and from the model."""

from __future__ import annotations

import torch

from geocomm.core.errors import InvalidArgumentError


def host_zeros(numel: int, *, pinned: bool) -> torch.Tensor:
    """A new 1-D float32 tensor of zeros in host memory. pinned: page-locked, so that a GPU copies at full speed.

    Raises InvalidArgumentError where so much cannot be pinned.
    """
    try:
        return torch.zeros(numel, pin_memory=pinned)
    except RuntimeError as error:
        if not pinned:
            raise
        raise InvalidArgumentError(
            f"local steps: {numel * 4 / 2**20:.0f} MiB of host memory could not be pinned ({error}); raise the limit "
            "(ulimit -l, or the container's memory), or use more ranks per site, which share the outer state"
        ) from error
