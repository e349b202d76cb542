"""Long tensors in parts that stay in a core's cache, so that several operations on them read memory once."""

from __future__ import annotations

from collections.abc import Iterator

_ELEMS = 1 << 16  # of three or four float32 buffers


def cache_chunks(numel: int) -> Iterator[slice]:
    """The parts of a 1-D tensor of this many elements, one after the other."""
    return (slice(start, start + _ELEMS) for start in range(0, numel, _ELEMS))
