"""What is known of an ONNX graph. No torch, no onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OnnxFacts:
    """What was compared with transformers, and how it came out.

    `positions` logit vectors of `sequences` random sequences differ by at most `largest_difference`, and
    `positions_argmax_equal` of them have the same most likely token. Of the model's `experts`, summed over its layers,
    the sequences reached `experts_reached`.
    """

    sequences: int
    positions: int
    positions_argmax_equal: int
    largest_difference: float
    experts: int
    experts_reached: int
