"""Where lossy reductions of CUDA tensors are coded: on the GPU, or on the host, whichever takes less time.

Both give the same bytes, so each rank chooses for itself. Measured once in a process, for each codec: a tensor is
coded, and two of its payloads are added up. For the GPU payloads cross to the host and back, for the host the tensor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from geocomm.codecs.codec_spec import collective_form
from geocomm.codecs.tensor_codec import codec_presets, compress, compress_bound, decompress
from geocomm.core.native import native
from geocomm.core.once import Once

if TYPE_CHECKING:
    import torch

SIZES = (1 << 18, 1 << 22)
"""Bytes of the tensors, in float32: the times of others lie on a line through these."""
CODECS = ("bit2", "bit1", "bf16", "fp16")
"""Beside the presets."""
_ROUNDS = 4


@dataclass(frozen=True)
class CodingTimes:
    """Seconds for a tensor of so many bytes."""

    size_bytes: int
    gpu_s: float
    host_s: float


def least_bytes(small: CodingTimes, large: CodingTimes) -> int | None:
    """From which size on the GPU is sooner, if its lead grows along a line; None: it is not for large ones."""
    lead_small, lead_large = small.host_s - small.gpu_s, large.host_s - large.gpu_s
    if min(lead_small, lead_large) >= 0:
        return 0
    if lead_large <= lead_small:
        return None
    share = -lead_small / (lead_large - lead_small)
    return round(small.size_bytes + share * (large.size_bytes - small.size_bytes))


def measure(device: torch.device, codec: str, threads: int, sizes: Sequence[int] = SIZES) -> list[CodingTimes]:
    """The times of `codec`, of each size. Where it has no kernels, the GPU's way is by the host."""
    return [_Trial(device, codec, size, threads).times() for size in sizes]


@Once
def measured_places(device: torch.device, threads: int) -> Mapping[str, int | None]:
    """From which size on the GPU is sooner, by codec; None: never."""
    places: dict[str, int | None] = {}
    for codec in (*CODECS, *codec_presets()):
        if collective_form(codec).exact:
            continue  # the host's in any case
        small, large = measure(device, codec, threads)
        places[codec] = least_bytes(small, large)
    return places


def choose_places(device: torch.device, threads: int) -> None:
    """Collectives of this process code there from now on."""
    for codec, least in measured_places(device, threads).items():
        native().code_on_device_from(str(collective_form(codec)), least)


class _Trial:
    """One tensor, and the memory that either way takes."""

    def __init__(self, device: torch.device, codec: str, size_bytes: int, threads: int) -> None:
        import torch

        self._device, self._threads = device, threads
        form = collective_form(codec)
        self._codec = str(form)
        generator = torch.Generator().manual_seed(1)
        pins = device.type == "cuda"
        self._host = torch.randn(size_bytes // 4, generator=generator, pin_memory=pins)
        self._values = self._host.to(device)
        self._total, self._host_total = torch.zeros_like(self._values), torch.zeros_like(self._host)
        room = compress_bound(self._values, self._codec)
        self._room = torch.empty(room, dtype=torch.uint8, device=device)
        self._host_room = torch.empty(room, dtype=torch.uint8, pin_memory=pins)
        self._come = torch.empty_like(self._room)
        self._residual = torch.zeros_like(self._values) if form.needs_feedback else None
        self._host_residual = torch.zeros_like(self._host) if form.needs_feedback else None

    def times(self) -> CodingTimes:
        return CodingTimes(self._host.nbytes, self._least(self._on_gpu), self._least(self._on_host))

    def _least(self, run: Callable[[], None]) -> float:
        """Of some rounds, so that a busy moment does not count, nor the first, which loads kernels."""
        seconds: list[float] = []
        for _ in range(_ROUNDS):
            self._settle()
            begin = time.perf_counter()
            run()
            self._settle()
            seconds.append(time.perf_counter() - begin)
        return min(seconds[1:])

    def _settle(self) -> None:
        import torch

        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _on_gpu(self) -> None:
        payload = compress(self._values, self._codec, self._residual, out=self._room)
        sent = self._host_room[: payload.numel()].copy_(payload, non_blocking=True)
        come = self._come[: payload.numel()].copy_(sent, non_blocking=True)
        decompress(payload, out=self._total, add=True)
        decompress(come, out=self._total, add=True)

    def _on_host(self) -> None:
        self._host.copy_(self._values, non_blocking=True)
        self._settle()
        payload = compress(self._host, self._codec, self._host_residual, out=self._host_room, threads=self._threads)
        for _ in range(2):
            decompress(payload, out=self._host_total, add=True, threads=self._threads)
        self._values.copy_(self._host, non_blocking=True)
