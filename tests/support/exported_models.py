"""Small models with random weights, and what is in a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, DeepseekV3Config, PreTrainedConfig, PreTrainedModel

from geocomm.train.models.model_presets import PRESETS

_SMALL = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_mtp_layers": 0,
}
_ATTENTION = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# By type, chosen for how transformers stores them: nothing to turn, tied weights, experts in one tensor, projections
# that are stored in one tensor, names that are stored otherwise.
OTHER_TYPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1},
    "glm4_moe": {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1},
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 2},
}


def deepseek_config(**changes: Any) -> PreTrainedConfig:
    """A model of the `tiny` preset's kind with some ten thousand parameters."""
    return DeepseekV3Config(**(PRESETS["tiny"] | _SMALL | {"bos_token_id": None, "eos_token_id": 256} | changes))


def other_config(model_type: str) -> PreTrainedConfig:
    return AutoConfig.for_model(model_type, **(_ATTENTION | OTHER_TYPES[model_type]))


def random_model(config: PreTrainedConfig, seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Every parameter and stored buffer drawn, also those that begin as zeros; on the scale of trained ones."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for tensor in model.state_dict(keep_vars=True).values():
            if tensor.is_floating_point():
                tensor.normal_(std=0.2)
    if dtype != torch.float32:
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
    return model.eval()


def stored_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Of all safetensors files in a folder."""
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def config_json(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())
