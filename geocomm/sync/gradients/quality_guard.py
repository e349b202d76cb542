"""Whether error feedback keeps up: one verdict for all ranks, and the codec to go on with if it does not."""

from __future__ import annotations

import itertools
import math

import torch
import torch.distributed as dist

from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.typed_torch import all_reduce, begin_all_reduce, device_of_group, to_list

_LADDER = ("tiny", "small", "balanced", "int4", "int8", "lossless")
_FINER_THAN_FAMILY = {
    "topk": "small",
    "loco": "small",
    "deadzone": "int4",
    "bitplanes": "int4",
    "bit1": "int4",
    "bit2": "int4",
    "int4": "int8",
    "int8": "lossless",
    "fp16": "lossless",
    "bf16": "lossless",
}
_GROWTH = 1.25
_WINDOWS = 3


def finer_codec(codec: str) -> str | None:
    """The next finer preset; None for an exact codec."""
    spec = codec_spec(codec)
    for preset, finer in itertools.pairwise(_LADDER):
        if codec_spec(preset) == spec:
            return finer
    return _FINER_THAN_FAMILY.get(spec.family)


class QualityGuard:
    """Sums of squares over windows of `steps` steps, added up over the ranks at the end of each window.

    A codec that leaves ||e'||^2 <= (1 - delta) ||g + e||^2 of what it is given keeps the residual e bounded: E||e||^2
    <= 4 (1 - delta) / delta^2 max ||g||^2 (Karimireddy, Rebjock, Stich, Jaggi: Error Feedback Fixes SignSGD and other
    Gradient Compression Schemes, ICML 2019, lemma 3); ||e|| / ||g|| tends to a constant, of some 1 / delta steps of
    delay. So there is reason to fall back where
    - a residual is not finite though the gradients are;
    - over a window the codec lost as much as it was given: delta <= 0;
    - ||e|| / ||g|| is above 1 and grew by a quarter or more from window to window, three times: it is not bounded by
      what the gradients explain, or only after more steps than three windows, which is too long a delay.
    ||g||: of the gradients as they were decoded. The first window, in which residuals fill from zero, is the base.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._sums = torch.zeros(4, dtype=torch.float64)  # residual, input, gradient squared; residuals not finite
        self._count = 0
        self._under_way: tuple[dist.Work, torch.Tensor] | None = None
        self.forget()

    def forget(self) -> None:
        """Another codec: windows so far say nothing of it. Alike on all ranks."""
        self._ratio: float | None = None
        self._rises = 0
        self._count = 0
        self._sums.zero_()

    def add(self, residual_square: float, input_square: float, gradient_square: float, not_finite: int) -> None:
        """A step's sums over this rank's buckets."""
        if not_finite:
            residual_square = input_square = 0.0
        self._sums += torch.tensor([residual_square, input_square, gradient_square, not_finite], dtype=torch.float64)
        self._count += 1

    def exchange_if_due(self, group: dist.ProcessGroup) -> None:
        """Called by all ranks at the same place of a step; every `steps` steps starts a small all-reduce."""
        if self._count < self.steps:
            return
        sums = self._sums.clone()
        self._count = 0
        self._sums.zero_()
        self._under_way = begin_all_reduce(sums, group), sums

    def verdict(self, ranks: int, shards: dist.ProcessGroup | None = None) -> str | None:
        """What is wrong, if a window has ended and something is; waits for its all-reduce.

        shards: the ranks that hold the other parts of the model's gradients; their sums count as well.
        """
        if self._under_way is None:
            return None
        work, sums = self._under_way
        self._under_way = None
        work.wait()
        if shards is not None:
            sums = sums.to(device_of_group(shards))
            all_reduce(sums, group=shards)
        residual_square, input_square, gradient_square, not_finite = to_list(sums)
        return self.judge(residual_square, input_square, gradient_square / ranks, not_finite)

    def judge(
        self, residual_square: float, input_square: float, gradient_square: float, not_finite: float
    ) -> str | None:
        """The rule, on a window's sums over all ranks."""
        if not_finite or not math.isfinite(residual_square + input_square + gradient_square):
            return "a residual is not finite"
        if residual_square >= input_square > 0:
            return f"it loses as much as it is given (NMSE {residual_square / input_square:.2f})"
        ratio = math.sqrt(residual_square / gradient_square) if gradient_square > 0 else math.inf
        if residual_square == 0:
            ratio = 0.0
        grew = self._ratio is not None and ratio > 1 and ratio >= _GROWTH * self._ratio
        self._rises = self._rises + 1 if grew else 0
        self._ratio = ratio
        if self._rises >= _WINDOWS:
            return (
                f"the residuals grow: {ratio:.3g} times the gradients, after {_WINDOWS} windows of {self.steps} steps"
            )
        return None
