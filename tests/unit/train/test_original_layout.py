"""Weights as Hugging Face stores them: equal to what `save_pretrained` writes, in memory for a few of them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch
from transformers import PreTrainedConfig

from geocomm.core.bad_input import BadInput
from geocomm.train.export.original_layout import OriginalLayout
from support.exported_models import OTHER_TYPES, deepseek_config, other_config, random_model, stored_tensors


class FreshWeights(Mapping[str, torch.Tensor]):
    """Copies at each access, and how many bytes of them lived at the same time."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._weights = weights
        self.alive_bytes = self.most_bytes = 0

    def __getitem__(self, name: str) -> torch.Tensor:
        copy = self._weights[name].clone()
        storage = copy.untyped_storage()
        size = storage.nbytes()
        self.alive_bytes += size
        self.most_bytes = max(self.most_bytes, self.alive_bytes)
        weakref.finalize(storage, self._gone, size)
        return copy

    def _gone(self, size: int) -> None:
        self.alive_bytes -= size

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def convert(config: PreTrainedConfig, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    layout = OriginalLayout(config, torch.float32)
    layout.require(weights)
    return dict(layout.convert(weights))


def configurations() -> dict[str, PreTrainedConfig]:
    return {"deepseek_v3": deepseek_config()} | {name: other_config(name) for name in OTHER_TYPES}


@pytest.mark.parametrize("name", ["deepseek_v3", *OTHER_TYPES])
def test_converted_weights_are_what_save_pretrained_stores(name: str, tmp_path: Path) -> None:
    config = configurations()[name]
    model = random_model(config)
    model.save_pretrained(tmp_path)
    expected = stored_tensors(tmp_path)
    layout = OriginalLayout(config, torch.float32)
    found = dict(layout.convert(model.state_dict()))
    assert found.keys() == expected.keys() == layout.planned.keys()
    for each, tensor in found.items():
        assert torch.equal(tensor, expected[each]), each


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_weights_round_once_and_keep_what_the_router_adds_in_float32(dtype: torch.dtype) -> None:
    config = deepseek_config()
    model = random_model(config)
    exact = dict(OriginalLayout(config, torch.float32).convert(model.state_dict()))
    rounded = dict(OriginalLayout(config, dtype).convert(model.state_dict()))
    kept = tuple(model._keep_in_fp32_modules_strict)  # from transformers 5.24 on, the router's weights too
    assert any("e_score_correction_bias".endswith(one) for one in kept)
    for name, tensor in rounded.items():
        expected = torch.float32 if name.endswith(kept) else dtype
        assert tensor.dtype == expected, name
        assert torch.equal(tensor, exact[name].to(expected)), name


def test_conversion_holds_one_weight_at_a_time() -> None:
    config = deepseek_config()
    state = random_model(config).state_dict()
    weights = FreshWeights(state)
    gc.disable()  # what waits for the collector would count
    try:
        for _, tensor in OriginalLayout(config, torch.float32).convert(weights):
            del tensor
    finally:
        gc.enable()
    assert weights.most_bytes <= max(tensor.nbytes for tensor in state.values())


def test_tied_weights_are_read_and_stored_once() -> None:
    layout = OriginalLayout(other_config("qwen2"), torch.float32)
    assert [name for name in layout.planned if "embed" in name or "lm_head" in name] == ["model.embed_tokens.weight"]
    assert "lm_head.weight" not in layout.sources


@pytest.mark.parametrize("change", ["lack", "more", "shape"])
def test_weights_of_another_model_are_refused(change: str) -> None:
    config = deepseek_config()
    state = random_model(config).state_dict()
    name = "model.layers.1.mlp.experts.down_proj"
    if change == "lack":
        del state[name]
    elif change == "more":
        state["model.layers.9.input_layernorm.weight"] = torch.zeros(3)
    else:
        state[name] = state[name][:2]
    with pytest.raises(BadInput, match="another model"):
        convert(config, state)
