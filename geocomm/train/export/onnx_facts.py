"""What is known of an ONNX graph. No torch, no onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OnnxFacts:
    """What was compared with transformers, and how it came out.

    At `positions` of `sequences` random sequences, no logit differs by more than `largest_difference`, and at
    `positions_argmax_equal` of them the most likely token is the same. No token was sent to the experts
    `experts_not_reached` (layer, number) out of `experts`, counted over all layers.
    """

    sequences: int
    positions: int
    positions_argmax_equal: int
    largest_difference: float
    experts: int
    experts_not_reached: tuple[tuple[int, int], ...]
