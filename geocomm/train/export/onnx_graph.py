"""A model as an ONNX graph, by the exporter of transformers: each expert becomes a part of the graph.

Checked with transformers 5.23, torch 2.13, onnx 1.23, onnxscript 0.7.2 and onnxruntime 1.32. The exporter calls itself
experimental and names torch 2.12 as tested, so `onnx_check` compares what comes out.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

from geocomm.core.bad_input import BadInput

MOST_EXPERTS = 1000
"""The most experts of all layers together. On a Xeon core the exporter took 61 s for 12 layers of 16, and 0.23 s for
each further expert."""


def check_size(config: PreTrainedConfig) -> None:
    """Raises BadInput where layers times experts make a graph that is too large to make and to load."""
    experts = config.num_hidden_layers * getattr(config, "n_routed_experts", 0)
    if experts > MOST_EXPERTS:
        raise BadInput(
            f"--format onnx: the graph would hold {experts} experts, each by itself; the most is {MOST_EXPERTS}. "
            "Use --format hf or gguf"
        )


def save_graph(model: PreTrainedModel, path: Path) -> None:
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
