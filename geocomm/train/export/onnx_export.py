"""A Hugging Face folder as an ONNX graph: `input_ids` and `attention_mask` in, `logits` of every position out.

The exporter of transformers makes it: each expert becomes a part of the graph. The graph computes in float32 whatever
the folder's dtype, since ONNX Runtime has few 16-bit operators for the CPU. 16-bit weights become float32 without loss.

Checked with transformers 5.23, torch 2.13, onnx 1.23, onnxscript 0.7.2 and onnxruntime 1.32. The exporter calls itself
experimental and names torch 2.12 as tested, so what comes out is compared with the model in ONNX Runtime,
over every expert. Two correct programs round differently. Where the scores of two experts are equal up to rounding,
they may choose differently, and then all that follows differs. So a sequence is compared up to its first such choice.
"""

from __future__ import annotations

import io
import logging
import shutil
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.export import Dim
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

from geocomm.core.bad_input import BadInput

if TYPE_CHECKING:
    import onnxruntime

MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "model.onnx.data"
LARGEST_DIFFERENCE = 1e-3
"""The most by which a logit of ONNX Runtime may differ from that of transformers. Rounding made up to 2e-5 in models
like the preset tiny, and 1e-4 in one like small with weights five times a fresh model's. One wrong expert makes 0.1
and more."""
_NOT_COPIED = ("*.safetensors", "*.safetensors.index.json", "README.md", "export.json")
MOST_EXPERTS = 1000
"""The most experts of all layers together. On a Xeon core the exporter took 61 s for 12 layers of 16, and 0.23 s for
each further expert."""


def write_onnx(hf_folder: Path, out: Path, verify: int, say: Callable[[str], None]) -> OnnxFacts:
    """Writes graph, weights and the folder's other files into `out`, and compares with transformers.

    `out` exists, and is the caller's to remove where this fails. At least `verify` sequences are compared, and more
    until every expert of every layer was used or a limit is reached; 0 compares none. Needs memory for about four
    copies of the model in float32.

    Raises BadInput for a model whose graph would be too large, and logits that differ.
    """
    _check_size(AutoConfig.from_pretrained(hf_folder, local_files_only=True))
    model = AutoModelForCausalLM.from_pretrained(hf_folder, local_files_only=True, dtype=torch.float32).eval()
    shutil.copytree(hf_folder, out, ignore=shutil.ignore_patterns(*_NOT_COPIED), dirs_exist_ok=True)
    say("making the ONNX graph, with all experts in it; this takes a while")
    _save_graph(model, out / MODEL_FILE)
    size_bytes = sum((out / name).stat().st_size for name in (MODEL_FILE, WEIGHTS_FILE))
    say(f"{MODEL_FILE}: {size_bytes / 1e6:.1f} MB with its weights")
    facts = compare_logits(model, out / MODEL_FILE, verify)
    if not facts.largest_difference <= LARGEST_DIFFERENCE:  # NaN, too
        raise BadInput(
            f"the ONNX graph's logits differ from transformers' by {facts.largest_difference:.1e}, more than "
            f"{LARGEST_DIFFERENCE:.0e}: export hf instead, and please report the model's config.json"
        )
    if verify and not facts.positions:
        raise BadInput(
            "the ONNX graph could not be checked: the model's choice of experts is a tie or no number everywhere"
        )
    if verify:
        say(f"onnxruntime: {facts.positions} positions, largest difference {facts.largest_difference:.1e}")
        if facts.experts_not_reached:
            first = ", ".join(f"layer {layer} expert {expert}" for layer, expert in facts.experts_not_reached[:3])
            say(
                f"not compared: {len(facts.experts_not_reached)} of {facts.experts} experts, which the model sent no "
                f"token to in {facts.sequences} random sequences ({first}, …)"
            )
    return facts


def _check_size(config: PreTrainedConfig) -> None:
    """Raises BadInput where layers times experts make a graph that is too large to make and to load."""
    experts = config.num_hidden_layers * getattr(config, "n_routed_experts", 0)
    if experts > MOST_EXPERTS:
        raise BadInput(
            f"--format onnx: the graph would hold {experts} experts, each by itself; the most is {MOST_EXPERTS}. "
            "Use --format hf"
        )


def _save_graph(model: PreTrainedModel, path: Path) -> None:
    """Writes `path` and its weights beside it. Batch and length stay open; `model` is in evaluation mode."""
    tokens = torch.arange(2 * 7).view(2, 7)
    example: dict[str, Any] = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    axes = {0: Dim("batch"), 1: Dim("length", max=model.config.max_position_embeddings)}
    # ONNX Runtime optimizes when it loads the graph. The exporter's own pass would take as long as all else.
    config = OnnxConfig(dynamic=True, dynamic_shapes=dict.fromkeys(example, axes), optimize=False)
    model.config.use_cache = False
    with _quiet():
        exported = OnnxExporter().export(model, example, config=config)
    for node in exported.program.graph.all_nodes():
        node.metadata_props.clear()  # where in the Python code it comes from: nine tenths of the graph's bytes
    OnnxExporter.save_program(exported.program, path)


@contextmanager
def _quiet() -> Generator[None]:
    """Without the exporters' progress and warnings. What they warn of is checked by comparing logits."""
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(logging.NOTSET)


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

    def __exit__(self, *_: object) -> None:
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
    import onnxruntime  # starts a thread

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
