"""A model as an ONNX graph, by the exporter of transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.export import Dim
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

from geocomm.core.bad_input import BadInput

MOST_EXPERTS = 1000


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
    example = {"input_ids": torch.arange(2 * 7).view(2, 7), "attention_mask": torch.ones(2, 7, dtype=torch.int64)}
    axes = {0: Dim("batch"), 1: Dim("length", max=model.config.max_position_embeddings)}
    config = OnnxConfig(dynamic=True, dynamic_shapes=dict.fromkeys(example, axes))
    model.config.use_cache = False
    exported = OnnxExporter().export(model, example, config=config)
    OnnxExporter.save_program(exported.program, path)
