"""The ONNX graph in ONNX Runtime, against the model it was made from."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

from transformers import AutoTokenizer, PreTrainedModel

from geocomm.core.bad_input import BadInput
from geocomm.core.installation import install_command
from geocomm.train.export.export_run import need_packages
from geocomm.train.export.onnx_export import (
    LARGEST_DIFFERENCE,
    OnnxFacts,
    RoutingWatch,
    compare_logits,
    routing_margin,
    write_onnx,
)
from support.deepseek_folder import deepseek_folder

pytestmark = [
    # Importing it starts a thread, which what is forked from this process lacks.
    pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed"),
    pytest.mark.timeout(900),  # to export takes a minute of one core
]
ROUNDING = 1e-4
EXPERTS = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path, OnnxFacts]:
    folder = tmp_path_factory.mktemp("onnx")
    model = deepseek_folder(folder / "hf", **EXPERTS)
    (folder / "out").mkdir()
    return model, folder / "out", write_onnx(folder / "hf", folder / "out", 16, print)


def test_every_expert_gives_the_models_logits(exported: tuple[PreTrainedModel, Path, OnnxFacts]) -> None:
    _, _, facts = exported
    assert (facts.experts, facts.experts_not_reached) == (8, ())
    assert facts.sequences >= 16
    assert facts.positions > 2000
    assert facts.positions_argmax_equal == facts.positions
    assert 0 < facts.largest_difference <= ROUNDING


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 64), (5, 3), (3, 512)])
def test_batch_and_length_are_open(batch: int, length: int, exported: tuple[PreTrainedModel, Path, OnnxFacts]) -> None:
    model, out, _ = exported
    tokens = torch.randint(264, (batch, length), generator=torch.Generator().manual_seed(batch))
    with torch.inference_mode():
        expected = model(input_ids=tokens, use_cache=False).logits
    got = _run(out, tokens, torch.ones_like(tokens))
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= ROUNDING


def test_attention_mask_hides_padding_on_the_left(exported: tuple[PreTrainedModel, Path, OnnxFacts]) -> None:
    model, out, _ = exported
    tokens = torch.randint(264, (2, 20), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(tokens)
    mask[0, :9] = 0
    with torch.inference_mode():
        alone = model(input_ids=tokens[:1, 9:], use_cache=False).logits[0]
    got = _run(out, tokens, mask)
    assert (got[0, 9:] - alone).abs().max() <= ROUNDING
    assert (_run(out, tokens, torch.ones_like(mask))[0, 9:] - alone).abs().max() > 100 * ROUNDING


def test_folder_has_what_a_consumer_needs(exported: tuple[PreTrainedModel, Path, OnnxFacts]) -> None:
    _, out, _ = exported
    names = {path.name for path in out.iterdir()}
    assert {"model.onnx", "model.onnx.data", "config.json", "generation_config.json", "tokenizer.json"} <= names
    assert not any(name.endswith(".safetensors") for name in names)
    assert AutoTokenizer.from_pretrained(out)("a<|endoftext|>")["input_ids"] == [97, 256]


def test_another_model_is_told_apart(exported: tuple[PreTrainedModel, Path, OnnxFacts]) -> None:
    model, out, _ = exported
    router = next(m for name, m in model.named_modules() if name.endswith("mlp.gate"))
    bias = router.e_score_correction_bias.clone()
    try:
        router.e_score_correction_bias.zero_()
        assert compare_logits(model, out / "model.onnx", 2).largest_difference > LARGEST_DIFFERENCE
    finally:
        router.e_score_correction_bias.copy_(bias)


def test_routing_margin_is_the_smallest_change_that_chooses_otherwise(tmp_path: Path) -> None:
    model = deepseek_folder(tmp_path, **EXPERTS)
    router = next(m for name, m in model.named_modules() if name.endswith("mlp.gate"))
    with torch.inference_mode():
        logits, _, chosen = router(torch.randn(200, 64, generator=torch.Generator().manual_seed(1)))
        margins = routing_margin(router, logits)
    scores = (logits.sigmoid() + router.e_score_correction_bias).double().view(-1, 2, 4)
    for row, picked, margin in zip(scores, chosen, margins, strict=True):
        groups = row.topk(2).values.sum(dim=1)
        group = int(groups.argmax())
        assert sorted(picked.tolist()) == sorted((row[group].topk(2).indices + 4 * group).tolist())
        best = row[group].sort(descending=True).values
        expected = min((groups[group] - groups[1 - group]).item(), (best[1] - best[2]).item())
        assert margin.item() == pytest.approx(expected, abs=1e-6)


def test_positions_after_a_tie_are_not_compared(tmp_path: Path) -> None:
    model = deepseek_folder(tmp_path)
    with RoutingWatch(model) as watch, torch.inference_mode():
        model(input_ids=torch.randint(264, (2, 30)), use_cache=False)
        watch._margins[0][[12, 40]] = 0.0
        clear = watch.clear_positions(2, 30)
    assert clear.sum(dim=1).tolist() == [12, 10]


def test_model_with_too_many_experts_is_refused(tmp_path: Path) -> None:
    deepseek_folder(tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config | {"n_routed_experts": 2048}))
    (tmp_path / "out").mkdir()
    with pytest.raises(BadInput, match="4096 experts"):
        write_onnx(tmp_path / "hf", tmp_path / "out", 0, print)
    assert not list((tmp_path / "out").iterdir())


def test_missing_package_is_named_with_the_way_to_get_it() -> None:
    with pytest.raises(BadInput, match=re.escape(f"not_a_package: {install_command('export')}")):
        need_packages("torch", "not_a_package")


def _run(out: Path, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    import onnxruntime

    session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"input_ids": tokens.numpy(), "attention_mask": mask.numpy()})
    return torch.from_numpy(np.asarray(logits))
