"""What a GGUF file says beside its tensors: the model's sizes, how experts are chosen, the vocabulary.

llama.cpp reads all of it from the file. What is left out gets a default of llama.cpp, and a wrong default runs without
an error: without `expert_gating_func` the router would take softmax in place of sigmoid.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
from transformers import AutoTokenizer, DeepseekV3Config

from geocomm.core.bad_input import BadInput
from geocomm.train.export.export_record import Dtype

_FILE_TYPES: dict[Dtype, gguf.LlamaFileType] = {
    "fp32": gguf.LlamaFileType.ALL_F32,
    "fp16": gguf.LlamaFileType.MOSTLY_F16,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
}
# llama.cpp tells by the number of layers whether a model's queries are of low rank (its deepseek2.cpp, is_lite).
_LAYERS_WITHOUT_LOW_RANK_QUERIES = (26, 27)
_ELSE = "export hf and convert the folder with llama.cpp's convert_hf_to_gguf.py"


def check_convertible(config: Any) -> DeepseekV3Config:
    """The configuration, if llama.cpp computes such a model as transformers does; else BadInput."""
    if not isinstance(config, DeepseekV3Config):
        raise BadInput(f"gguf: only deepseek_v3 models are written, this is {config.model_type}: {_ELSE}")
    rope: dict[str, Any] = dict(config.rope_parameters or {})
    unsupported = {
        f"hidden_act {config.hidden_act}": config.hidden_act != "silu",
        "attention_bias": config.attention_bias,
        "rope_interleave false": not config.rope_interleave,
        f"rope_type {rope.get('rope_type')}": rope.get("rope_type", "default") != "default",
        f"{config.num_hidden_layers} layers with q_lora_rank, which llama.cpp takes for DeepSeek-V2-Lite": (
            config.q_lora_rank is not None and config.num_hidden_layers in _LAYERS_WITHOUT_LOW_RANK_QUERIES
        ),
    }
    found = [what for what, there in unsupported.items() if there]
    if found:
        raise BadInput(f"gguf: the model has {', '.join(found)}: {_ELSE}")
    return config


def add_model_facts(writer: gguf.GGUFWriter, config: DeepseekV3Config, dtype: Dtype) -> None:
    """The model's sizes and functions."""
    key_width, rope_width = config.qk_nope_head_dim, config.qk_rope_head_dim
    writer.add_file_type(_FILE_TYPES[dtype])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_leading_dense_block_count(config.first_k_dense_replace or 0)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)

    # Latent attention as attention with one key head; the lengths "mla" are those of the real heads.
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(1)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    elif config.num_hidden_layers not in _LAYERS_WITHOUT_LOW_RANK_QUERIES:
        writer.add_q_lora_rank(0)  # llama.cpp asks for the key, and takes 0 for "full rank"
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_key_length(config.kv_lora_rank + rope_width)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(key_width + rope_width)
    writer.add_value_length_mla(config.v_head_dim or 0)
    writer.add_rope_dimension_count(rope_width)
    rope: dict[str, Any] = dict(config.rope_parameters or {})
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)

    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok or 0)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_group_count(config.n_group or 1)
    writer.add_expert_group_used_count(config.topk_group or 1)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(bool(config.norm_topk_prob))


def add_vocabulary(writer: gguf.GGUFWriter, folder: Path, vocab_size: int) -> None:
    """The byte-level BPE tokenizer of the folder, filled up to the model's `vocab_size` with unused tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if not hasattr(tokenizer, "backend_tokenizer") or tokenizer.eos_token_id is None:
        raise BadInput(f"gguf: the tokenizer has no tokenizer.json or no end-of-text token: {_ELSE}")
    facts = json.loads(tokenizer.backend_tokenizer.to_str())
    merges = _merges(facts)
    kinds = dict.fromkeys(facts["model"]["vocab"].values(), gguf.TokenType.NORMAL)
    texts = {id_: text for text, id_ in facts["model"]["vocab"].items()}
    for added in facts["added_tokens"]:
        texts[added["id"]] = added["content"]
        kinds[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    end_of_text: int = tokenizer.eos_token_id

    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([texts.get(id_, f"[PAD{id_}]") for id_ in range(vocab_size)])
    writer.add_token_types([kinds.get(id_, gguf.TokenType.UNUSED) for id_ in range(vocab_size)])
    # The file must list merges, and an empty list cannot be written. This one never applies: no text has this token
    # inside a word.
    writer.add_token_merges(merges or [f"{texts[end_of_text]} {texts[end_of_text]}"])
    writer.add_eos_token_id(end_of_text)
    # As in training, a text begins where another one ended. Left out, llama.cpp would take token 11.
    writer.add_bos_token_id(end_of_text)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _merges(facts: dict[str, Any]) -> list[str]:
    """The merges of a byte-level BPE that llama.cpp's `gpt-2` splits and merges alike; any other is BadInput."""
    model, splitter = facts["model"], facts["pre_tokenizer"] or {}
    merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges", [])]
    alike = splitter.get("type") == "ByteLevel" and not splitter["add_prefix_space"] and not facts["normalizer"]
    if merges:  # without merges every byte is a token, however the text is split
        alike = alike and splitter["use_regex"] and not model["ignore_merges"]
    if model["type"] != "BPE" or not alike:
        raise BadInput(f"gguf: the tokenizer is no byte-level BPE as GPT-2's: {_ELSE}")
    return merges
