"""The optimizer of a run: which parameters Muon has, and that it and AdamW are torch's."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from geocomm.train.loop.engine import make_optimizer
from geocomm.train.loop.train_config import OptimizerConfig


def make_model(tied: bool = False) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            tie_word_embeddings=tied,
        )
    )


def step(model: torch.nn.Module, optimizers: list[torch.optim.Optimizer], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for one in model.parameters():
        one.grad = torch.randn(one.shape, generator=generator)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = 1e-2
        optimizer.step()


def test_muon_and_adamw_step_as_torchs_do_and_go_on_from_their_state() -> None:
    model, other = make_model(), make_model()
    config = OptimizerConfig(name="muon", momentum=0.9)
    optimizer = make_optimizer(model, config)
    ends = ("embed_tokens.weight", "lm_head.weight")
    named = dict(other.named_parameters())
    matrices = [one for name, one in named.items() if one.ndim == 2 and not name.endswith(ends)]
    assert len(matrices) == 7
    decayed = [one for name, one in named.items() if name.endswith(ends)]
    vectors = [one for one in named.values() if one.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    expected = [
        torch.optim.Muon(matrices, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8),
    ]
    for seed in range(2):
        step(model, [optimizer], seed)
        step(other, expected, seed)
    again = make_optimizer(model, config)
    again.load_state_dict(optimizer.state_dict())
    step(model, [again], 2)
    step(other, expected, 2)
    for name, one in model.named_parameters():
        assert torch.equal(one, named[name]), name


def test_tied_output_layer_is_no_matrix_for_muon() -> None:
    model = make_model(tied=True)
    groups = make_optimizer(model, OptimizerConfig(name="muon")).param_groups
    assert [len(group["params"]) for group in groups] == [7, 1, 3]
    assert groups[1]["params"][0] is model.get_input_embeddings().weight
