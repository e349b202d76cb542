"""Host memory for the outer state, and for what is copied to and from the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from geocomm.core.errors import InvalidArgumentError
from geocomm.local_sgd.fragments import BYTES_PER_ELEMENT

_GIB = 2**30
_CGROUPS = Path("/sys/fs/cgroup")


def host_zeros(numel: int, *, pinned: bool) -> torch.Tensor:
    """A new 1-D float32 tensor of zeros in host memory. pinned: page-locked, so that a GPU copies at full speed.

    Its pages are there when it returns, so that no later step waits for them. Raises InvalidArgumentError where there
    is not so much.
    """
    return host_empty(numel, pinned=pinned).zero_()


def host_empty(numel: int, *, pinned: bool) -> torch.Tensor:
    """`host_zeros` with whatever is there."""
    try:
        return torch.empty(numel, pin_memory=pinned)
    except RuntimeError as error:
        size = f"{numel * BYTES_PER_ELEMENT / 2**20:.0f} MiB of host memory"
        if pinned:
            message = f"{size} could not be pinned ({error}); raise the limit (ulimit -l, or the container's memory)"
        else:
            message = f"there are no {size}; raise the limit (ulimit -v)"
        raise InvalidArgumentError(
            f"local steps: {message}, or use more ranks per site, which share the outer state"
        ) from error


def require_memory(needed: int, ranks: int, available: int | None) -> None:
    """Raise InvalidArgumentError where `ranks` ranks of this machine that need so many bytes each are too many for it.

    available: `available_memory()`, before one of them has taken any.
    """
    if available is not None and needed * ranks > available:
        each = "" if ranks == 1 else f" for each of its {ranks} ranks"
        raise InvalidArgumentError(
            f"local steps: the outer state and a round need {needed / _GIB:.2f} GiB of host memory{each}, and "
            f"this machine has {available / _GIB:.2f} GiB left; use more ranks per site on more machines, which share "
            "the state, more fragments, or an outer optimizer without momentum (8 bytes an element in place of 12)"
        )


def available_memory(meminfo: Path = Path("/proc/meminfo"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Bytes that this process can take without swapping: what the kernel and the cgroups (v2) over it leave. None: it
    is not known."""
    found = []
    for line in _lines(meminfo):
        if line.startswith("MemAvailable:"):
            found.append(1024 * int(line.split()[1]))
    for line in _lines(own):
        if line.startswith("0::/"):
            group = _CGROUPS / line[len("0::/") :]
            found += [left for path in (group, *group.parents) if (left := _left_of(path)) is not None]
    return min(found, default=None)


def _left_of(cgroup: Path) -> int | None:
    """Bytes below the limit of a cgroup, which counts cached files that the kernel would drop; None: it has none."""
    limit, used = _lines(cgroup / "memory.max"), _lines(cgroup / "memory.current")
    if not limit or not used or limit[0] == "max":
        return None
    cached = sum(int(line.split()[1]) for line in _lines(cgroup / "memory.stat") if line.startswith("inactive_file "))
    return max(0, int(limit[0]) - int(used[0]) + cached)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


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
