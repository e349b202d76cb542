"""The tensors of a GGUF file, made from those of a DeepSeek-V3 folder one at a time.

llama.cpp runs multi-head latent attention as attention with one key head, so two things are laid out anew:

- `kv_b_proj` comes in two: `attn_k_b`, transposed per head, and `attn_v_b`.
- The experts of a layer are stacked: one tensor each for gate, up and down.

Everything else keeps its shape and gets GGUF's name. Vectors and the router stay in float32 whatever the file's type.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import torch
from safetensors import safe_open
from transformers import DeepseekV3Config

from geocomm.core.bad_input import BadInput

ALWAYS_FLOAT32 = {
    gguf.MODEL_TENSOR.FFN_GATE_INP,
    gguf.MODEL_TENSOR.FFN_EXP_PROBS_B,
}
_EXPERT = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(\d+)\.(\w+)\.weight")


class SafetensorsFolder(Mapping[str, torch.Tensor]):
    """The tensors of a folder's `*.safetensors`, by name. Each is read from the disk when it is asked for."""

    def __init__(self, folder: Path) -> None:
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            files: dict[str, str] = json.loads(index.read_text())["weight_map"]
        else:
            with safe_open(folder / "model.safetensors", "pt") as opened:
                files = dict.fromkeys(opened.keys(), "model.safetensors")
        self._files = {name: folder / file for name, file in files.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        with safe_open(self._files[name], "pt") as opened:
            return opened.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

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
