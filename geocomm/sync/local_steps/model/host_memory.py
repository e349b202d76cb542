"""Host memory for the outer state, and for what is copied to and from the model."""

from __future__ import annotations

import mmap
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from geocomm.core.cgroups import lines, own_cgroups
from geocomm.core.errors import InvalidArgumentError
from geocomm.core.typed_torch import from_numpy
from geocomm.core.units import count_text
from geocomm.sync.local_steps.model.fragments import BYTES_PER_ELEMENT

_GIB = 2**30


def host_zeros(numel: int, *, pinned: bool) -> torch.Tensor:
    """A new 1-D float32 tensor of zeros in host memory. pinned: page-locked, so that a GPU copies at full speed.

    Its pages are there when it returns, so that no later step waits for them. Raises InvalidArgumentError where there
    is not so much.
    """
    values = host_empty(numel, pinned=True) if pinned else from_numpy(_mapped(numel))
    return values.zero_()


def host_empty(numel: int, *, pinned: bool) -> torch.Tensor:
    """`host_zeros` with whatever is there. Memory that nobody uses any more is taken again, pages and all."""
    if not pinned:
        return _recycled(numel)
    try:
        return torch.empty(numel, pin_memory=True)
    except RuntimeError as error:
        raise _refusal(numel, f"could not be pinned ({error})", "-l, or the container's memory") from error


def bytes_of(values: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return values.view(torch.uint8).numpy().data.cast("B")


def free_host_memory() -> None:
    """Give the memory back that nobody uses any more."""
    _FREE.clear()


_FREE: dict[int, list[np.ndarray]] = {}
"""Memory for `host_empty`, by its elements. Fresh memory costs as much time as a codec: the system clears each page
when it is first written to, and the C library gives large blocks back.

Every operation on it is one that other threads do not come into. There is never more of a size than was used at a time.
"""


def _recycled(numel: int) -> torch.Tensor:
    if numel == 0:
        return torch.empty(0)
    size = rounded_up(numel)
    free = _FREE.setdefault(size, [])
    try:
        memory = free.pop()
    except IndexError:
        memory = _mapped(size)
    values = memory[:numel]
    # Torch has this array as long as a tensor has its memory, and lets go of it in any thread.
    weakref.finalize(values, free.append, memory).atexit = False
    return from_numpy(values)


def rounded_up(numel: int) -> int:
    """Round up by an eighth at most, so that fragments of about the same size can have each other's memory."""
    unit = 1 << max(0, numel.bit_length() - 4)
    return -(-numel // unit) * unit


def _mapped(numel: int) -> np.ndarray:
    """float32. In large pages where the system has them: a pass over it then looks up fewer addresses."""
    try:
        memory = mmap.mmap(-1, max(1, numel * BYTES_PER_ELEMENT))
    except (OSError, OverflowError, ValueError) as error:
        raise _refusal(numel, f"could not be had ({error})", "-v") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.float32, count=numel)


def _refusal(numel: int, what: str, limit: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"local steps: {numel * BYTES_PER_ELEMENT / 2**20:.0f} MiB of host memory {what}; raise the limit (ulimit "
        f"{limit}), or use more ranks per site, which share the outer state"
    )


def require_memory(needed: int, ranks: int, available: int | None) -> None:
    """Raise InvalidArgumentError where `ranks` ranks of this machine that need this many bytes each are too many for
    it.

    available: `available_memory()`, before one of them has taken any.
    """
    if available is not None and needed * ranks > available:
        each = "" if ranks == 1 else f" for each of its {count_text(ranks, 'rank')}"
        raise InvalidArgumentError(
            f"local steps: the outer state and a round need {needed / _GIB:.2f} GiB of host memory{each}, and "
            f"this machine has {available / _GIB:.2f} GiB left; use more ranks per site on more machines, which share "
            "the state, more fragments, or an outer optimizer without momentum (8 bytes an element in place of 12)"
        )


def available_memory(
    meminfo: Path = Path("/proc/meminfo"),
    own: Path = Path("/proc/self/cgroup"),
    mounted: Path = Path("/sys/fs/cgroup"),
) -> int | None:
    """Bytes that this process can take without swapping: what the kernel and the cgroups (v2) over it leave. None: it
    is not known."""
    found = [1024 * int(line.split()[1]) for line in lines(meminfo) if line.startswith("MemAvailable:")]
    found += [left for group in own_cgroups("memory", own, mounted) if (left := _left_of(group)) is not None]
    return min(found, default=None)


def _left_of(cgroup: Path) -> int | None:
    """Bytes below the limit of a cgroup, which counts cached files that the kernel would drop; None: it has none."""
    limit, used = lines(cgroup / "memory.max"), lines(cgroup / "memory.current")
    if not limit or not used or limit[0] == "max":
        return None
    cached = sum(int(line.split()[1]) for line in lines(cgroup / "memory.stat") if line.startswith("inactive_file "))
    return max(0, int(limit[0]) - int(used[0]) + cached)
