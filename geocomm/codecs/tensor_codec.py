"""Compress tensors to bytes and back: the codecs of the collectives, for anyone who wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from geocomm.core.errors import InvalidArgumentError
from geocomm.core.native import native

if TYPE_CHECKING:
    import torch


def compress(
    tensor: torch.Tensor,
    codec: str,
    residual: torch.Tensor | None = None,
    *,
    seed: int = 0,
    decay: float = 1.0,
    threshold: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    threads: int | None = None,
) -> torch.Tensor:
    """Compress a tensor of any shape; returns a uint8 tensor on its device (frames of at most 1 MiB of elements each).

    codec: a preset ("balanced", see `codec_presets()`) or a codec with settings ("int8", "int4:block=128+huffman", see
    docs/how-to/choose-a-codec.md). Lossy ones take float32, float16 and bfloat16, "none" and "lossless" every dtype.
    residual: error feedback (Seide et al. 2014). float32 or bfloat16, contiguous, as many elements, zeros at first:
    decay * residual is added before quantizing, and what was lost is left in it, in place. Keep one per tensor, from
    call to call. "tiny", "topk" and "loco" refuse to work without.
    seed: of stochastic rounding; the same seed gives the same bytes.
    threshold: one float32, 0 at first, carried from call to call by "topk:select=global".
    out: uint8, contiguous, of at least `compress_bound(tensor, codec)` bytes: the result is a view of its beginning.
    threads: at most so many; default GEOCOMM_THREADS, else this process's share of the cores. The bytes do not depend
    on them. CUDA tensors: the kernels of the device, or the host where there are none for the codec; the same bytes.

    Raises InvalidArgumentError (unknown codec, wrong or missing residual) or UnsupportedError (dtype or device).
    """
    return native().compress(
        tensor.detach().resolve_neg(), codec, residual, seed, decay, threshold, out, _threads(threads)
    )


def compress_bound(tensor: torch.Tensor, codec: str) -> int:
    """The most bytes that `compress` can give for any tensor of this size and dtype.

    Blocks with NaN or Inf cross as they are, so lossy codecs take far less where there are none (int8 a fifth of it).
    Room that is not written to takes no memory on the CPU.
    """
    return native().compress_bound(tensor, codec)


def decompress(
    payload: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    add: bool = False,
    max_elems: int | None = None,
    threads: int | None = None,
) -> torch.Tensor:
    """Decode what `compress` gave: into `out` (same dtype and number of elements, any shape), else a new 1-D tensor.

    add: add it to `out`, which is float32 and contiguous, in one pass; the payload's dtype may be float32, float16 or
    bfloat16. What "topk" and "loco" left out is not touched.
    max_elems: refuse a payload of more elements. Without it, and without `out`, the payload alone decides how much
    memory the result takes, and 44 bytes of "topk" or of zeros stand for 1 MiB. Give one of the two where you do not
    trust the payload's maker.

    Raises CorruptDataError where the bytes are not a payload, InvalidArgumentError where `out` does not fit or
    `max_elems` is exceeded.
    """
    if max_elems is not None and max_elems < 0:
        raise InvalidArgumentError(f"max_elems is {max_elems}; it must be 0 or more")
    return native().decompress(payload, out, add, max_elems, _threads(threads))


def codec_names() -> list[str]:
    """The codecs: names that a codec string may begin with."""
    return native().codec_names()


def codec_presets() -> dict[str, str]:
    """The presets, each with the codec that it stands for."""
    return dict(native().codec_presets())


def _threads(threads: int | None) -> int:
    """The number of threads as the native module takes it: 0 for its own default."""
    if threads is None:
        return 0
    if threads < 1:
        raise InvalidArgumentError(f"threads is {threads}; it must be 1 or more")
    return threads
