"""What changed of a tensor, for a reader who has it as it was: weights that training moves a little."""

from __future__ import annotations

from typing import TYPE_CHECKING

from geocomm.codecs.tensor_codec import native_threads
from geocomm.core.native import native

if TYPE_CHECKING:
    import torch


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
