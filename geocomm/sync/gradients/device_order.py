"""The order of what the hooks enqueue on a GPU, and values of it that the host reads later. On CPUs: nothing to do.

A hook runs ahead of the device, on whatever streams are current when torch calls it, and must not wait for any.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from geocomm.core.errors import UnsupportedError
from geocomm.core.typed_torch import split

_SQUARED_AT_ONCE = 4 << 20  # elements, of which float64 copies are made


class DeviceOrder:
    """`with order:` what the host enqueues inside comes after what it enqueued in the sections before.

    Whatever the streams were: what the sections keep from step to step is then used like memory of the host. `device`:
    of the tensors, set once it is known; until then, and for CPUs, sections are no more than their bodies.
    """

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self._end: torch.cuda.Event | None = None

    def __enter__(self) -> None:
        if self._end is not None:
            torch.cuda.current_stream(self.device).wait_event(self._end)

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            self._end = torch.cuda.Event()
            self._end.record(torch.cuda.current_stream(self.device))


class LaterValue:
    """A number that a device computes; the host reads it when it is there, and waits for nothing enqueued since."""

    def __init__(self, value: torch.Tensor) -> None:
        """value: of no dimensions, made on the current stream."""
        self.tensor = value
        self._host = value
        self._copied: torch.cuda.Event | None = None
        if value.is_cuda:
            self._host = torch.empty((), dtype=value.dtype, pin_memory=True)
            self._host.copy_(value, non_blocking=True)
            self._copied = torch.cuda.Event(blocking=True)
            self._copied.record(torch.cuda.current_stream(value.device))

    def read(self) -> float:
        """Blocks the host until the device has computed it."""
        if self._copied is not None:
            self._copied.synchronize()
        return float(self._host)


def keep_for_stream(tensors: Iterable[torch.Tensor | None]) -> None:
    """The memory of these is given away only when the device has passed what their current stream holds by then."""
    for tensor in tensors:
        if tensor is not None and tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


def square_of(values: torch.Tensor) -> torch.Tensor:
    """Squared L2 norm, float64, of no dimensions; not finite where an element is not, and only there."""
    linalg: Any = torch.linalg  # without types
    total = torch.zeros((), dtype=torch.float64, device=values.device)
    for part in split(values, _SQUARED_AT_ONCE):
        total += linalg.vector_norm(part, dtype=torch.float64).square()
    return total


def is_read_later(values: torch.Tensor) -> bool:
    """Whether the host must not read them, nor what is made of them, before the step is over."""
    return not values.is_cpu


def require_devices(what: str, devices: Iterable[torch.device]) -> None:
    """Raise UnsupportedError for parameters that are neither on CPUs nor on CUDA devices, or on both."""
    found = sorted({device.type for device in devices})
    if len(found) > 1 or not set(found) <= {"cpu", "cuda"}:
        raise UnsupportedError(
            f"{what} takes parameters that are all on CPUs or all on CUDA devices, not on {', '.join(found)}; without "
            "a hook the codec of the process group compresses their gradients (geocomm.Options(codec='int8'))"
        )
