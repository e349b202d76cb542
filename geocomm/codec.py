"""Compress tensors to bytes and back: the codecs of the collectives, for anyone who wants them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from geocomm.errors import InvalidArgumentError, UnsupportedError
from geocomm.native import native
from geocomm.options import LOG_LEVELS

if TYPE_CHECKING:
    import torch

AUTO = "auto"
"""In place of a codec's name: the backend chooses for each size (auto_codec.py)."""


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
    docs/codecs.md). Lossy ones take float32, float16 and bfloat16, "none" and "lossless" take every dtype.
    residual: error feedback (Seide et al. 2014). float32 or bfloat16, contiguous, as many elements, zeros at first:
    decay * residual is added before quantizing, and what was lost is left in it, in place. Keep one per tensor, from
    call to call. "tiny" and "topk" refuse to work without.
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
    bfloat16. What "topk" left out is not touched.
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


def collective_codec(codec: str) -> str:
    """The codec as the backend runs it, in canonical form.

    The backend sees anonymous buffers, so there is no error feedback: what only works with it is refused. Four bits
    rounded to nearest would lose small values in every step: `int4` therefore rounds stochastically, which is unbiased,
    unless the string says `round=`. A dead zone cannot be unbiased, and a log line says so. "auto" stays what it is.
    """
    if codec == AUTO:
        return AUTO
    form = collective_form(codec)
    if native().needs_feedback(codec):
        raise UnsupportedError(
            f"codec {codec!r} drops most elements and needs error feedback, which the backend cannot give: it does not "
            "know which tensor a buffer belongs to. Take another codec here ('small' is the smallest that works), or "
            "pass a residual to geocomm.compress in code of your own"
        )
    if form.startswith("deadzone"):
        _warn_of_dead_zone(codec)
    return form


def collective_form(codec: str) -> str:
    """`collective_codec` without its verdict: canonical, with the backend's own default rounding."""
    canonical = native().canonical_codec(codec)
    settings, plus, stage = canonical.partition("+")
    if settings.partition(":")[0] == "int4" and "round=" not in codec:
        separator = "," if ":" in settings else ":"
        return native().canonical_codec(f"{settings}{separator}round=stochastic{plus}{stage}")
    return canonical


@functools.cache
def _warn_of_dead_zone(codec: str) -> None:
    native().log(
        LOG_LEVELS["warning"],
        f"codec {codec!r}: the backend has no error feedback, so gradients that stay small in every step never cross "
        "the sites. Compare a run with codec int8 before you trust it",
    )


def _threads(threads: int | None) -> int:
    """As the native module takes it: 0 for its own default."""
    if threads is None:
        return 0
    if threads < 1:
        raise InvalidArgumentError(f"threads is {threads}; it must be 1 or more")
    return threads
