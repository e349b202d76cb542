"""GGUF files: what llama.cpp computes from them, what is in them, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

pytest.importorskip("transformers")
pytest.importorskip("gguf")

import gguf
from transformers import PreTrainedTokenizerFast

from geocomm.core.bad_input import BadInput
from geocomm.train.export.export_record import Dtype
from geocomm.train.export.gguf_file import SafetensorsFolder, compare_file, gguf_tensors, write_gguf
from support.deepseek_folder import deepseek_folder
from support.llama_cpp import PRINTABLE, ask_llama_cpp, skip_without_llama_cpp

TEXTS = ["Grüße, 世界!\n\tx  y .  ", "a<|endoftext|>b"]
MODELS = {
    "low-rank": {},
    "full-rank": {"q_lora_rank": None, "routed_scaling_factor": 2.5},
    "groups": {
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "tie_word_embeddings": True,
    },
}
LARGEST_DIFFERENCE = {"fp32": 2e-5, "fp16": 0.02, "bf16": 0.15}
NEW_TOKENS = 12


def _quiet(_line: str) -> None:
    pass


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("low-rank", "fp32"),
        ("low-rank", "fp16"),
        ("low-rank", "bf16"),
        ("full-rank", "fp32"),
        ("groups", "fp32"),
    ],
)
def test_llama_cpp_computes_what_transformers_does(kind: str, dtype: Dtype, tmp_path: Path) -> None:
    skip_without_llama_cpp()
    model = deepseek_folder(tmp_path / "hf", **MODELS[kind])
    write_gguf(tmp_path / "hf", tmp_path, dtype, 0, _quiet)
    prompts = torch.randint(264, (3, 40), generator=torch.Generator().manual_seed(7)).tolist()
    answers = ask_llama_cpp(tmp_path / "model.gguf", 264, prompts, NEW_TOKENS, TEXTS)
    for prompt, continuation, got in zip(prompts, answers.continuations, answers.log_probabilities, strict=True):
        assert len(continuation) == NEW_TOKENS
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt + continuation]), use_cache=False).logits[0]
        expected = logits[len(prompt) - 1 : -1].log_softmax(dim=-1)
        difference = (expected - got).abs().max().item()
        print(f"{kind} {dtype}: largest difference {difference:.2e}, log-probabilities from {expected.min():.1f}")
        assert difference < LARGEST_DIFFERENCE[dtype]
        if dtype == "fp32":
            assert [token - PRINTABLE.start for token in continuation] == expected[:, PRINTABLE].argmax(dim=-1).tolist()
    assert answers.tokens == [list("Grüße, 世界!\n\tx  y .  ".encode()), [97, 256, 98]]
    assert answers.texts == TEXTS


def test_llama_cpp_merges_as_the_tokenizer_does(tmp_path: Path) -> None:
    skip_without_llama_cpp()
    deepseek_folder(tmp_path / "hf", vocab_size=400)
    tokenizer = _trained_tokenizer()
    tokenizer.save_pretrained(tmp_path / "hf")
    write_gguf(tmp_path / "hf", tmp_path, "fp32", 0, _quiet)
    texts = ["the other thing's there, 1234 times\n\n  the end", "Grüße, 世界!"]
    answers = ask_llama_cpp(tmp_path / "model.gguf", 400, [[1]], 1, texts)
    assert answers.tokens == [tokenizer(text)["input_ids"] for text in texts]
    assert max(answers.tokens[0]) > 257  # merges took part


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_file_holds_every_weight_of_the_model(dtype: Dtype, tmp_path: Path) -> None:
    model = deepseek_folder(tmp_path / "hf")
    said: list[str] = []
    write_gguf(tmp_path / "hf", tmp_path, dtype, 1, said.append)
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert f"all {len(tensors)} tensors are equal" in said[-1]
    parameters = sum(value.numel() for value in model.state_dict().values())
    assert f"{len(tensors)} tensors, {parameters / 1e6:.1f} M parameters" in said[0]
    rounding = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]

    def values(name: str) -> torch.Tensor:
        return torch.from_numpy(gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type).copy())

    weights = {name: value.to(rounding).float() for name, value in model.state_dict().items() if value.dim() > 1}
    exact = {name: value for name, value in model.state_dict().items() if value.dim() == 1}
    assert torch.equal(values("token_embd.weight"), weights["model.embed_tokens.weight"])
    assert torch.equal(values("output.weight"), weights["lm_head.weight"])
    gate, up = weights["model.layers.1.mlp.experts.gate_up_proj"].chunk(2, dim=1)
    assert torch.equal(values("blk.1.ffn_gate_exps.weight"), gate)
    assert torch.equal(values("blk.1.ffn_up_exps.weight"), up)
    assert torch.equal(values("blk.1.ffn_down_exps.weight"), weights["model.layers.1.mlp.experts.down_proj"])
    key, value = values("blk.0.attn_k_b.weight").transpose(1, 2), values("blk.0.attn_v_b.weight")
    assert torch.equal(
        torch.cat([key, value], dim=1).flatten(0, 1), weights["model.layers.0.self_attn.kv_b_proj.weight"]
    )
    assert torch.equal(values("blk.1.exp_probs_b.bias"), exact["model.layers.1.mlp.gate.e_score_correction_bias"])
    assert torch.equal(values("blk.1.ffn_gate_inp.weight"), model.state_dict()["model.layers.1.mlp.gate.weight"])
    assert torch.equal(values("blk.0.attn_norm.weight"), exact["model.layers.0.input_layernorm.weight"])


def test_file_says_how_experts_are_chosen(tmp_path: Path) -> None:
    deepseek_folder(tmp_path / "hf", **MODELS["groups"])
    write_gguf(tmp_path / "hf", tmp_path, "fp32", 0, _quiet)
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    expected = {
        "expert_gating_func": int(gguf.ExpertGatingFuncType.SIGMOID),
        "expert_count": 8,
        "expert_used_count": 3,
        "expert_group_count": 4,
        "expert_group_used_count": 2,
        "expert_weights_norm": False,
        "expert_weights_scale": 1.0,
        "attention.head_count_kv": 1,
        "attention.key_length": 32 + 16,
        "attention.key_length_mla": 32 + 16,
        "rope.dimension_count": 16,
    }
    assert {name: fields[f"deepseek2.{name}"].contents() for name in expected} == expected
    kinds = fields["tokenizer.ggml.token_type"].contents()
    assert [kinds[97], kinds[256], kinds[263]] == [
        gguf.TokenType.NORMAL, gguf.TokenType.CONTROL, gguf.TokenType.UNUSED,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}},
        {"rope_interleave": False},
        {"attention_bias": True},
        {"hidden_act": "gelu"},
        {"num_hidden_layers": 27},
        {"model_type": "llama"},
    ],
)
def test_model_that_llama_cpp_runs_otherwise_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    deepseek_folder(tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(BadInput) as caught:
        write_gguf(tmp_path / "hf", tmp_path, "fp32", 0, _quiet)
    assert "\n" not in str(caught.value)


def test_unusable_input_is_refused(tmp_path: Path) -> None:
    deepseek_folder(tmp_path / "hf")
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    weights["lm_head.weight"][0, 0] = 1e5
    save_file(weights, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadInput, match="output"):
        write_gguf(tmp_path / "hf", tmp_path, "fp16", 0, _quiet)
    weights["model.layers.0.self_attn.extra.weight"] = torch.zeros(2, 2)
    save_file(weights, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadInput, match="extra"):
        write_gguf(tmp_path / "hf", tmp_path, "fp32", 0, _quiet)


def test_tokenizer_that_llama_cpp_splits_otherwise_is_refused(tmp_path: Path) -> None:
    deepseek_folder(tmp_path / "hf", vocab_size=400)
    tokenizer = _trained_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.save_pretrained(tmp_path / "hf")
    with pytest.raises(BadInput, match="tokenizer"):
        write_gguf(tmp_path / "hf", tmp_path, "fp32", 0, _quiet)


def test_damaged_file_is_found_when_it_is_read_back(tmp_path: Path) -> None:
    model = deepseek_folder(tmp_path / "hf")
    tensors = gguf_tensors(SafetensorsFolder(tmp_path / "hf"), model.config)
    write_gguf(tmp_path / "hf", tmp_path, "bf16", 1, _quiet)
    compare_file(tmp_path / "model.gguf", tensors, "bf16")
    content = bytearray((tmp_path / "model.gguf").read_bytes())
    content[-1000] ^= 1
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(BadInput):
        compare_file(tmp_path / "model.gguf", tensors, "bf16")


def _trained_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE with merges, split as GPT-2 does."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=390, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"]
    )
    core.train_from_iterator(["the other thing is there and then they end the 1234 times of the end"] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|endoftext|>")
