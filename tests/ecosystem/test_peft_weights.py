"""Streams of weights of models that PEFT trains: adapters alone, whole, and merged."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from geocomm.weights.publisher import WeightPublisher
from geocomm.weights.reader import WeightReader

pytestmark = pytest.mark.slow

_IDS = torch.arange(64).view(2, 32)


def plain_model() -> Any:
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 256}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))


def adapted(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config)


class Trained:
    """A model with adapters, and its steps."""

    def __init__(self) -> None:
        self.model = adapted(plain_model())
        trained = [one for one in self.model.parameters() if one.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=1e-2)

    def step(self) -> None:
        self.model(input_ids=_IDS, labels=_IDS).loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=_IDS).logits


@pytest.mark.parametrize("whole", [False, True], ids=["adapters", "whole"])
def test_adapters_are_published_and_read_in_place(tmp_path: Path, whole: bool) -> None:
    trained, other = Trained(), adapted(copy.deepcopy(plain_model()))

    def tensors(model: Any) -> Any:
        return model if whole else pytest.importorskip("peft").get_peft_model_state_dict(model)

    assert not whole or torch.equal(logits(other), logits(trained.model))
    with WeightPublisher(tmp_path / "stream", tensors(trained.model)) as publisher:
        for step in range(3):
            trained.step()
            publisher.publish(step=step, wait=True)
    with WeightReader(str(tmp_path / "stream"), tensors(other)) as reader:
        assert reader.update() == 3
    assert torch.equal(logits(other), logits(trained.model))
    assert not torch.equal(logits(other), logits(plain_model()))


def test_merged_weights_are_those_of_the_plain_model(tmp_path: Path) -> None:
    trained, plain = Trained(), plain_model()
    model = trained.model
    trained.step()
    model.merge_adapter()
    merged = {
        name.removeprefix("base_model.model.").replace(".base_layer", ""): value
        for name, value in model.state_dict().items()
        if "lora_" not in name
    }
    model.unmerge_adapter()
    with WeightPublisher(tmp_path / "stream", merged) as publisher:
        for step in range(2):
            trained.step()
            model.merge_adapter()
            publisher.publish(step=step, wait=True)
            expected = {name: value.clone() for name, value in merged.items()}
            model.unmerge_adapter()
    with WeightReader(str(tmp_path / "stream"), plain) as reader:
        assert reader.update() == 2
    assert all(torch.equal(value, expected[name]) for name, value in plain.state_dict().items())
    assert not torch.equal(logits(plain), logits(plain_model()))
