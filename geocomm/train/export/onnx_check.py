"""Compares an ONNX graph in ONNX Runtime with the model it was made from, over every expert.

Two correct programs round differently. Where the scores of two experts are equal up to rounding, they may choose
differently, and then all that follows differs. So a sequence is compared up to its first such choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnxruntime
import torch
from transformers import PreTrainedModel
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

SHAPES = ((3, 192), (1, 128))
"""The shapes of batches, taken in turn: sequences and tokens."""
SEARCH_FACTOR = 4
"""The search for experts that no sequence has reached takes at most this many times the sequences asked for."""
TIE = 1e-5
"""The difference up to which two scores are a tie. Scores lie between 0 and 1, and those of the two programs differ by
less than a tenth of this."""


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


class RoutingWatch:
    """Which experts a model chooses while it runs, and where a choice is a tie up to rounding."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._routers = {
            int(name.split(".")[2]): module  # model.layers.3.mlp.gate
            for name, module in model.named_modules()
            if isinstance(module, DeepseekV3TopkRouter)
        }
        self._reached = {
            layer: torch.zeros(router.num_experts, dtype=torch.bool) for layer, router in self._routers.items()
        }
        self._margins: list[torch.Tensor] = []
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> RoutingWatch:
        for layer, router in self._routers.items():
            self._hooks.append(router.register_forward_hook(self._hook(layer)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()

    @property
    def experts(self) -> int:
        """Experts of all layers."""
        return sum(len(reached) for reached in self._reached.values())

    def not_reached(self) -> tuple[tuple[int, int], ...]:
        """Layer and number of the experts that no token was sent to."""
        return tuple(
            (layer, expert)
            for layer, reached in self._reached.items()
            for expert, was in enumerate(reached.tolist())
            if not was
        )

    def clear_positions(self, batch: int, length: int) -> torch.Tensor:
        """Positions of the last forward before the first tie of their sequence: bool `[batch, length]`."""
        clear = torch.ones(batch, length, dtype=torch.bool)
        for margins in self._margins:
            clear &= margins.view(batch, length) > TIE
        self._margins.clear()
        return clear.long().cumprod(dim=1).bool()

    def _hook(self, layer: int) -> Any:
        def hook(router: DeepseekV3TopkRouter, _inputs: Any, outputs: tuple[torch.Tensor, ...]) -> None:
            logits, _weights, chosen = outputs
            self._reached[layer][chosen.flatten()] = True
            self._margins.append(routing_margin(router, logits))

        return hook


def routing_margin(router: DeepseekV3TopkRouter, logits: torch.Tensor) -> torch.Tensor:
    """Per token, how far the last chosen group and expert lie above the first that are not chosen."""
    groups, kept_groups, kept = router.num_group or 1, router.topk_group or 1, router.top_k or 1
    scores = logits.sigmoid() + router.e_score_correction_bias
    margin = torch.full((len(scores),), torch.inf)
    if kept_groups < groups:
        grouped = scores.unflatten(1, (groups, -1))
        by_group = grouped.topk(2, dim=-1).values.sum(dim=-1)
        best = by_group.topk(kept_groups + 1, dim=-1)
        margin = best.values[:, -2] - best.values[:, -1]
        is_kept = torch.zeros_like(by_group, dtype=torch.bool).scatter(1, best.indices[:, :-1], True)
        scores = grouped.masked_fill(~is_kept.unsqueeze(-1), -torch.inf).flatten(1)
    if kept < router.num_experts:
        best_scores = scores.topk(kept + 1, dim=-1).values
        margin = torch.minimum(margin, best_scores[:, -2] - best_scores[:, -1])
    return margin


def compare_logits(model: PreTrainedModel, path: Path, sequences: int) -> OnnxFacts:
    """Logits of `path` against `model`'s, over random sequences that reach every expert if they can be found."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    longest = model.config.max_position_embeddings
    done = positions = argmax_equal = turn = 0
    largest = torch.zeros(())
    with RoutingWatch(model) as watch, torch.inference_mode():
        while done < sequences or (watch.not_reached() and done < SEARCH_FACTOR * sequences):
            batch, length = SHAPES[turn % len(SHAPES)]
            tokens = torch.randint(model.config.vocab_size, (batch, min(length, longest)), generator=generator)
            expected = model(input_ids=tokens, use_cache=False).logits
            got = torch.from_numpy(_run(session, tokens.numpy()))
            clear = watch.clear_positions(*tokens.shape)
            expected, got = expected[clear], got[clear]
            if len(got):
                largest = torch.maximum(largest, (expected - got).abs().max())  # NaN stays NaN
            positions += len(got)
            argmax_equal += int((expected.argmax(dim=-1) == got.argmax(dim=-1)).sum())
            done += batch
            turn += 1
        return OnnxFacts(done, positions, argmax_equal, largest.item(), watch.experts, watch.not_reached())


def _run(session: onnxruntime.InferenceSession, tokens: np.ndarray) -> np.ndarray:
    inputs = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
    (logits,) = session.run(["logits"], inputs)
    return np.asarray(logits)
