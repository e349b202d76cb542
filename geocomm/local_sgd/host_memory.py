"""Host memory for the outer state, and for what is copied to and from the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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


class Scratch:
    """float32 buffers that threads borrow and give back.

    Fresh memory costs as much time as a codec: the system clears each page when it is first written to.
    """

    def __init__(self) -> None:
        """None yet; there will be as many as were borrowed at a time."""
        self._free: list[torch.Tensor] = []

    @contextmanager
    def borrowed(self, count: int, numel: int) -> Iterator[list[torch.Tensor]]:
        """So many 1-D tensors of `numel` elements, whatever they hold, in this block."""
        buffers = [self._take(numel) for _ in range(count)]
        try:
            yield [buffer[:numel] for buffer in buffers]
        finally:
            self._free.extend(buffers)

    def _take(self, numel: int) -> torch.Tensor:
        try:
            buffer = self._free.pop()  # one operation, so that threads need no lock
        except IndexError:
            return torch.empty(numel)
        return buffer if buffer.numel() >= numel else torch.empty(numel)
