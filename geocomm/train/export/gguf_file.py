"""A DeepSeek-V3 folder as one GGUF file, which llama.cpp and what is built on it load.

llama.cpp reads all about the model from the file. What is left out gets a default of llama.cpp, and a wrong default
runs without an error: without `expert_gating_func` the router would take softmax in place of sigmoid.

It runs multi-head latent attention as attention with one key head, so two things are laid out anew:

- `kv_b_proj` comes in two: `attn_k_b`, transposed per head, and `attn_v_b`.
- The experts of a layer are stacked: one tensor each for gate, up and down.

Everything else keeps its shape and gets GGUF's name. Vectors and the router stay in float32 whatever the file's type.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoTokenizer, DeepseekV3Config

from geocomm.core.bad_input import BadInput
from geocomm.train.export.export_record import Dtype
from geocomm.train.export.weights import LazyWeights

MODEL_FILE = "model.gguf"
_KINDS: dict[Dtype, gguf.GGMLQuantizationType] = {
    "fp32": gguf.GGMLQuantizationType.F32,
    "fp16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
}


def write_gguf(hf_folder: Path, out: Path, dtype: Dtype, verify: int, say: Callable[[str], None]) -> None:
    """Writes `out/model.gguf`; `out` exists, and is the caller's to remove where this fails.

    With `verify` above 0 the file is read back and each tensor compared, bit for bit. Memory stays at a few times the
    largest tensor, which is the experts of one layer.

    Raises BadInput for a model or tokenizer that llama.cpp would run in another way, for numbers beyond fp16's range,
    and for a file that does not read back as it was written.
    """
    config = check_convertible(AutoConfig.from_pretrained(hf_folder, local_files_only=True))
    tensors = gguf_tensors(SafetensorsFolder(hf_folder), config)
    path = out / MODEL_FILE
    _write_file(path, tensors, config, hf_folder, dtype)
    parameters = sum(tensor.elements for tensor in tensors)
    say(
        f"{MODEL_FILE}: {len(tensors)} tensors, {parameters / 1e6:.1f} M parameters, {path.stat().st_size / 1e6:.1f} MB"
    )
    if verify:
        compare_file(path, tensors, dtype)
        say(f"{MODEL_FILE} read back: all {len(tensors)} tensors are equal to the model's")


def _write_file(path: Path, tensors: list[GgufTensor], config: DeepseekV3Config, hf_folder: Path, dtype: Dtype) -> None:
    """Writes `path`: facts, vocabulary of the folder, then one tensor after another."""
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.DEEPSEEK2])
    try:
        add_model_facts(writer, config, dtype)
        add_vocabulary(writer, hf_folder, config.vocab_size)
        for tensor in tensors:
            kind = _kind(tensor, dtype)
            size_bytes = tensor.elements * (4 if kind == gguf.GGMLQuantizationType.F32 else 2)
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), size_bytes, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in tensors:
            writer.write_tensor_data(_encoded(tensor, dtype))
    finally:
        writer.close()


def compare_file(path: Path, tensors: list[GgufTensor], dtype: Dtype) -> None:
    """Raises BadInput unless `path` holds exactly `tensors`, bit for bit."""
    written = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    expected = {tensor.name: tensor for tensor in tensors}
    different = sorted(written.keys() ^ expected.keys())
    different += [
        name
        for name in expected.keys() & written.keys()
        if written[name].tobytes() != _encoded(expected[name], dtype).tobytes()
    ]
    if different:
        raise BadInput(f"{path} reads back with another {different[0]}: check the disk, and export again")


def _kind(tensor: GgufTensor, dtype: Dtype) -> gguf.GGMLQuantizationType:
    return _KINDS["fp32" if tensor.always_float32 else dtype]


def _encoded(tensor: GgufTensor, dtype: Dtype) -> np.ndarray:
    """The tensor's values as the file has them. numpy has no bfloat16: its 16 bits go as integers."""
    values = tensor.values().contiguous()
    kind = _kind(tensor, dtype)
    if kind == gguf.GGMLQuantizationType.F32:
        return values.float().numpy()
    if kind == gguf.GGMLQuantizationType.BF16:
        return values.bfloat16().view(torch.int16).numpy()
    if (values.float().abs() > torch.finfo(torch.float16).max).any():
        raise BadInput(f"{tensor.name} has numbers beyond fp16's range: export with --dtype bf16 or fp32")
    return values.half().numpy()


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


ALWAYS_FLOAT32 = {
    gguf.MODEL_TENSOR.FFN_GATE_INP,
    gguf.MODEL_TENSOR.FFN_EXP_PROBS_B,
}
_EXPERT = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(\d+)\.(\w+)\.weight")


class SafetensorsFolder(LazyWeights):
    """The tensors of a folder's `*.safetensors`, by name. Each is read from the disk when it is asked for."""

    def __init__(self, folder: Path) -> None:
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            files: dict[str, str] = json.loads(index.read_text())["weight_map"]
        else:
            with safe_open(folder / "model.safetensors", "pt") as opened:
                files = dict.fromkeys(opened.keys(), "model.safetensors")
        self._files = {name: folder / file for name, file in files.items()}
        super().__init__({name: partial(self._read, name) for name in self._files})

    def _read(self, name: str) -> torch.Tensor:
        with safe_open(self._files[name], "pt") as opened:
            return opened.get_tensor(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, without reading its values."""
        with safe_open(self._files[name], "pt") as opened:
            return tuple(opened.get_slice(name).get_shape())


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of the file: its name there, its shape with the rows last, and how to make its values."""

    name: str
    shape: tuple[int, ...]
    always_float32: bool
    values: Callable[[], torch.Tensor]

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


def gguf_tensors(weights: SafetensorsFolder, config: DeepseekV3Config) -> list[GgufTensor]:
    """All tensors of the file in the folder's order. BadInput: a weight that llama.cpp has no place for."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.DEEPSEEK2, config.num_hidden_layers)
    tensors: list[GgufTensor] = []

    def add(name: str, shape: tuple[int, ...], values: Callable[[], torch.Tensor]) -> None:
        found = names.get_type_and_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise BadInput(
                f"weight '{name}' has no place in a GGUF file of the deepseek2 architecture: export hf instead"
            )
        kind, gguf_name = found
        tensors.append(GgufTensor(gguf_name, shape, len(shape) == 1 or kind in ALWAYS_FLOAT32, values))

    for name in weights:
        expert = _EXPERT.fullmatch(name)
        if expert:
            experts, number, projection = expert.groups()
            if number == "0":
                one_of_each = [f"{experts}.{e}.{projection}.weight" for e in range(config.n_routed_experts)]
                shape = (config.n_routed_experts, *weights.shape(name))
                add(f"{experts}.{projection}.weight", shape, _stacked(weights, one_of_each))
        elif name.endswith("kv_b_proj.weight"):
            heads, rank = config.num_attention_heads, config.kv_lora_rank
            key_width, value_width = config.qk_nope_head_dim, config.v_head_dim or 0
            key, value = name.replace("kv_b_proj", "k_b_proj"), name.replace("kv_b_proj", "v_b_proj")
            add(key, (heads, rank, key_width), _key_half(weights, name, heads, key_width))
            add(value, (heads, value_width, rank), _value_half(weights, name, heads, key_width))
        elif name == "lm_head.weight" and config.tie_word_embeddings:
            continue  # llama.cpp then takes the embedding
        else:
            add(
                name.replace("e_score_correction_bias", "e_score_correction.bias"),
                weights.shape(name),
                _plain(weights, name),
            )
    return tensors


def _plain(weights: Mapping[str, torch.Tensor], name: str) -> Callable[[], torch.Tensor]:
    return lambda: weights[name]


def _stacked(weights: Mapping[str, torch.Tensor], names: list[str]) -> Callable[[], torch.Tensor]:
    return lambda: torch.stack([weights[name] for name in names])


def _key_half(weights: Mapping[str, torch.Tensor], name: str, heads: int, key_width: int) -> Callable[[], torch.Tensor]:
    return lambda: weights[name].unflatten(0, (heads, -1))[:, :key_width].transpose(1, 2)


def _value_half(
    weights: Mapping[str, torch.Tensor], name: str, heads: int, key_width: int
) -> Callable[[], torch.Tensor]:
    return lambda: weights[name].unflatten(0, (heads, -1))[:, key_width:]
