"""A small DeepSeek-V3 model as a Hugging Face folder, with weights under which routing matters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from geocomm.data.corpus.data_settings import DataConfig
from geocomm.data.corpus.text_tokenizer import ByteTokenizer
from geocomm.train.models.model_factory import build_model, model_config
from geocomm.train.models.model_presets import ModelConfig

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "max_position_embeddings": 512,
}
"""Overrides of the preset `tiny`: one dense layer, one with four experts."""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, in the order of their values, then `<|endoftext|>`."""
    symbols = bytes_to_unicode()
    core = Tokenizer(models.BPE(vocab={symbols[byte]: byte for byte in range(256)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|endoftext|>")


def deepseek_folder(folder: Path, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Writes the folder as `geocomm export` does, and returns the model, in evaluation mode.

    Weights are several times larger than a fresh model's and the router's bias is not zero. So another choice of
    experts, or of their weights, gives visibly other logits.
    """
    settings = ModelConfig(preset="tiny", overrides={**SMALL, **overrides})
    model = build_model(settings, model_config(settings, DataConfig(sequence_length=64), ByteTokenizer()), seed).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(5.0)
            elif "norm" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.2 * torch.randn_like(buffer))
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    byte_tokenizer().save_pretrained(folder)
    return model
