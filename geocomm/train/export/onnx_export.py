"""A Hugging Face folder as an ONNX graph: `input_ids` and `attention_mask` in, `logits` of every position out.

The exporter of transformers makes it: each expert becomes a part of the graph. The graph computes in float32 whatever
the folder's dtype, since ONNX Runtime has few 16-bit operators for the CPU. 16-bit weights become float32 without loss.

Checked with transformers 5.23, torch 2.13, onnx 1.23, onnxscript 0.7.2 and onnxruntime 1.32. The exporter calls itself
experimental and names torch 2.12 as tested, so `onnx_check` compares what comes out.
"""

from __future__ import annotations

import io
import logging
import shutil
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

from geocomm.core.bad_input import BadInput
from geocomm.train.export.onnx_check import OnnxFacts, compare_logits

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
            "Use --format hf or gguf"
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
