"""Compress tensors to bytes and back: the codecs of the collectives, for anyone who wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from geocomm.native import native

if TYPE_CHECKING:
    import torch


def compress(tensor: torch.Tensor, codec: str, residual: torch.Tensor | None = None, *, seed: int = 0) -> torch.Tensor:
    """Compress a CPU tensor of any shape; returns a uint8 tensor (frames of at most 1 MiB of elements each).

    codec: such as "int8", "int4:block=128,round=stochastic", "bf16" (see `codec_names()`); lossy ones take float32,
    float16 and bfloat16, "none" takes every dtype. residual: float32, as many elements, contiguous: error feedback
    (Seide et al. 2014) is added before quantizing, and what was lost is left in it, in place. seed: of stochastic
    rounding; the same seed gives the same bytes.

    Raises InvalidArgumentError (unknown codec, wrong residual) or UnsupportedError (dtype or device).
    """
    return native().compress(tensor.detach().resolve_neg(), codec, residual, seed)


def decompress(payload: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Decode what `compress` gave: into `out` (same dtype and number of elements, any shape), else a new 1-D tensor.

    Raises CorruptDataError where the bytes are not a payload, InvalidArgumentError where `out` does not fit.
    """
    return native().decompress(payload, out)


def codec_names() -> list[str]:
    """The names that a codec string may begin with."""
    return native().codec_names()


def collective_codec(codec: str) -> str:
    """The codec as the backend runs it, in canonical form.

    The backend sees anonymous buffers, so there is no error feedback; four bits rounded to nearest would lose small
    values in every step. `int4` therefore rounds stochastically, which is unbiased, unless the string says `round=`.
    """
    name, _, settings = codec.partition(":")
    if name.strip() == "int4" and "round=" not in settings:
        codec = f"{codec}{',' if settings else ':'}round=stochastic"
    return native().canonical_codec(codec)
