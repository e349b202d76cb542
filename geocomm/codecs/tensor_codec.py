"""Compress tensors to bytes and back: the codecs of the collectives, for anyone who wants them.

And what changed of a tensor, for a reader who has it as it was: weights that training moves a little.
"""

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
    out: torch.Tensor | None = None,
    threads: int | None = None,
) -> torch.Tensor:
    """Compress a tensor.

    CUDA tensors are compressed by kernels of the device, or on the host if the codec has none. The bytes are the same.

    Args:
        tensor: Any shape, on the CPU or a CUDA device. Lossy codecs take float32, float16 and bfloat16; "none" and
            "lossless" take every dtype.
        codec: A preset such as "balanced" (`codec_presets`), or a codec with settings such as "int8" or
            "int4:block=128+huffman" (docs/reference/codec-strings.md).
        residual: Error feedback (Seide et al. 2014): a contiguous float32 or bfloat16 tensor with as many elements,
            zeros at first. `decay * residual` is added before quantizing, and the quantization error replaces it, in
            place. Keep one for each tensor from call to call. "tiny", "topk" and "loco" need it.
        seed: Seed of stochastic rounding; the same seed gives the same bytes.
        decay: Factor of the residual before it is added; finite.
        out: A contiguous uint8 tensor of at least `compress_bound(tensor, codec)` bytes on the tensor's device, to
            compress into.
        threads: The most CPU threads to use; None: GEOCOMM_THREADS, else this process's share of the cores. The bytes
            do not depend on it.

    Returns:
        A 1-D uint8 tensor on the tensor's device; with `out`, a view of the beginning of `out`.

    Raises:
        InvalidArgumentError: The codec is unknown, its settings are invalid, the residual is missing, or another
            argument does not fit.
        OutputTooSmallError: `out` has fewer bytes than `compress_bound` gives.
        UnsupportedError: The codec does not take this dtype or device.

    Example:
        Compress with error feedback, and decode:

            residual = torch.zeros(gradient.numel())
            payload = geocomm.compress(gradient, "int4", residual)
            decoded = geocomm.decompress(payload).view_as(gradient)
    """
    return native().compress(tensor.detach().resolve_neg(), codec, residual, seed, decay, out, native_threads(threads))


def compress_bound(tensor: torch.Tensor, codec: str) -> int:
    """The most bytes that `compress` can give for any tensor of this size and dtype.

    Lossy codecs send blocks with NaN or Inf uncompressed, so without those they take far less than the bound (int8 a
    fifth). On the CPU, pages of `out` that are not written take no memory.

    Args:
        tensor: Only its number of elements and dtype count.
        codec: A preset or a codec with settings, as for `compress`.

    Returns:
        A number of bytes.

    Raises:
        InvalidArgumentError: The codec is unknown, or its settings are invalid.
        UnsupportedError: No codec takes this dtype.
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
    """Decode a payload of `compress`.

    Without `out` and `max_elems` the payload alone decides how much memory the result takes: 44 bytes of "topk" stand
    for 1 MiB. Give one of the two if you do not trust the payload's maker.

    Args:
        payload: A contiguous uint8 tensor with the bytes of `compress`.
        out: A tensor on the payload's device to decode into, with the payload's dtype and number of elements, in any
            shape.
        add: Add the decoded values to `out` in one pass, in place of overwriting it. Then `out` is float32 and
            contiguous, and the payload's dtype is float32, float16 or bfloat16. Elements that "topk" and "loco" left
            out stay untouched.
        max_elems: Refuse a payload with more elements.
        threads: The most CPU threads to use; None: GEOCOMM_THREADS, else this process's share of the cores.

    Returns:
        `out`, in its own shape; without `out`, a new 1-D tensor of the payload's dtype on its device.

    Raises:
        CorruptDataError: The bytes are not a payload.
        InvalidArgumentError: `out` does not fit the payload, `add` came without `out`, or the payload has more than
            `max_elems` elements.
        VersionMismatchError: The payload was made by a version with another format.
    """
    if max_elems is not None and max_elems < 0:
        raise InvalidArgumentError(f"max_elems is {max_elems}; it must be 0 or more")
    return native().decompress(payload, out, add, max_elems, native_threads(threads))


def codec_names() -> list[str]:
    """List the codecs.

    Returns:
        The names that a codec string may begin with, such as "int8"; docs/reference/codec-strings.md has the settings
        that may follow.
    """
    return native().codec_names()


def codec_presets() -> dict[str, str]:
    """List the presets.

    Returns:
        For each preset the codec string it stands for.

    Example:
        The codec behind a preset:

            geocomm.codec_presets()["balanced"]
    """
    return dict(native().codec_presets())


def native_threads(threads: int | None) -> int:
    """The number of threads as the native module takes it: 0 for its own default."""
    if threads is None:
        return 0
    if threads < 1:
        raise InvalidArgumentError(f"threads is {threads}; it must be 1 or more")
    return threads


def make_delta(tensor: torch.Tensor, base: torch.Tensor, *, threads: int | None = None) -> torch.Tensor:
    """Encode how a tensor differs from another, bit for bit.

    Where few weights changed, and most of these by one unit in the last place, a delta takes little more than the
    entropy of that: 0.1 bits a weight at 1 %. Where most changed a lot, it takes about what "lossless" does.

    Args:
        tensor: Any shape and dtype of 1, 2, 4 or 8 bytes, on the CPU.
        base: A tensor of the same dtype and number of elements, on the CPU.
        threads: The most CPU threads to use; None: GEOCOMM_THREADS, else this process's share of the cores. The bytes
            do not depend on it.

    Returns:
        A 1-D uint8 tensor (docs/spec/deltas.md).

    Raises:
        InvalidArgumentError: The tensors differ in dtype or size.
        UnsupportedError: A tensor is not on the CPU, or not dense, or of a dtype such as complex64.

    Example:
        Send what a step changed:

            delta = geocomm.make_delta(weight, weight_before)
            geocomm.apply_delta(delta, weight_of_reader)
    """
    return native().make_delta(tensor.detach(), base.detach(), native_threads(threads))


def apply_delta(delta: torch.Tensor, tensor: torch.Tensor, *, threads: int | None = None) -> None:
    """Make a tensor, which is the base of a delta, the one that the delta was made of, in place.

    Args:
        delta: The bytes of `make_delta`.
        tensor: The base: the same dtype, number of elements and bits as there; any shape. Any other is refused, and
            left as it is.
        threads: As in `make_delta`.

    Raises:
        InvalidArgumentError: The tensor is not the delta's base.
        CorruptDataError: The bytes are not a delta. Where they were changed on purpose, with right checksums, the
            tensor may have changed, too.
        VersionMismatchError: The delta was made by a version with another format.
        UnsupportedError: A tensor is not on the CPU, or not dense.
    """
    native().apply_delta(delta, tensor.detach(), native_threads(threads))
