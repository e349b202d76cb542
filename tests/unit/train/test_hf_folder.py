"""A Hugging Face folder, loaded as other programs load it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig

from geocomm.core.bad_input import BadInput
from geocomm.train.export.export_record import RECORD, Dtype, ExportRecord, TrainedBy, read_record
from geocomm.train.export.export_run import check_folder
from geocomm.train.export.hf_folder import HfModel, finish_folder, write_hf_files
from geocomm.train.export.original_layout import OriginalLayout
from geocomm.train.export.weights import DTYPES
from support.exported_models import (
    OTHER_TYPES,
    config_json,
    deepseek_config,
    other_config,
    random_model,
    stored_tensors,
)


def model_of(config: PreTrainedConfig, dtype: Dtype, weights: dict[str, torch.Tensor]) -> HfModel:
    return HfModel(config, weights, OriginalLayout(config, DTYPES[dtype]), DTYPES[dtype], "byte")


def record_of(model: HfModel, dtype: Dtype) -> ExportRecord:
    return ExportRecord(
        format="hf",
        geocomm="0",
        source=TrainedBy(path="run", step=3, sites={"a": 2}),
        model_type=model.hf_config.model_type,
        dtype=dtype,
        parameters=model.layout.parameters,
        data=None,
        held_out=None,
        verify=None,
        files={},
    )


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("type_", ["deepseek_v3", "qwen2", "glm4_moe"])
def test_loaded_folder_computes_the_bits_of_the_trained_model(tmp_path: Path, dtype: Dtype, type_: str) -> None:
    config = deepseek_config() if type_ == "deepseek_v3" else other_config(type_)
    trained = random_model(config, dtype=DTYPES[dtype])
    write_hf_files(tmp_path, model_of(config, dtype, trained.state_dict()))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto", local_files_only=True)
    ids = torch.randint(0, config.vocab_size, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, trained(input_ids=ids).logits)
    assert config_json(tmp_path)["dtype"] == str(DTYPES[dtype]).removeprefix("torch.")


def test_deepseek_v3_says_how_its_router_scores(tmp_path: Path) -> None:
    config = deepseek_config()
    write_hf_files(tmp_path, model_of(config, "fp32", random_model(config).state_dict()))
    fields = config_json(tmp_path)
    assert (fields["scoring_func"], fields["topk_method"]) == ("sigmoid", "noaux_tc")
    assert (fields["architectures"], fields["use_cache"]) == (["DeepseekV3ForCausalLM"], True)
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation["eos_token_id"] == generation["pad_token_id"] == 256
    assert AutoTokenizer.from_pretrained(tmp_path, local_files_only=True).model_max_length == 2048


@pytest.mark.parametrize("type_", ["deepseek_v3", *OTHER_TYPES])
def test_large_model_is_cut_into_files_with_an_index(tmp_path: Path, type_: str) -> None:
    config = deepseek_config() if type_ == "deepseek_v3" else other_config(type_)
    state = random_model(config).state_dict()
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder, largest in ((whole, 10**9), (cut, 20_000)):
        folder.mkdir()
        write_hf_files(folder, model_of(config, "fp32", state), largest)
    index = json.loads((cut / "model.safetensors.index.json").read_text())
    files = {path.name for path in cut.glob("*.safetensors")}
    assert len(files) > 2
    assert set(index["weight_map"].values()) == files
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in stored_tensors(whole).values())
    first, second = stored_tensors(whole), stored_tensors(cut)
    assert index["weight_map"].keys() == first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    loaded = AutoModelForCausalLM.from_pretrained(cut, dtype="auto", local_files_only=True).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def test_finished_folder_has_the_hashes_of_its_files(tmp_path: Path) -> None:
    config = deepseek_config()
    model = model_of(config, "fp32", random_model(config).state_dict())
    finish_folder(tmp_path, record_of(model, "fp32"), write_hf_files(tmp_path, model))
    record = read_record(tmp_path)
    assert record is not None
    assert {path.name for path in tmp_path.iterdir()} == {*record.files, RECORD}
    for name, facts in record.files.items():
        data = (tmp_path / name).read_bytes()
        assert (facts.bytes, facts.sha256) == (len(data), hashlib.sha256(data).hexdigest()), name
    card = (tmp_path / "README.md").read_text()
    assert "| optimizer steps | 3 |" in card
    assert "| sites (ranks) | a (2) |" in card


@pytest.mark.parametrize("damage", ["router", "expert", "config"])
def test_folder_that_computes_something_else_is_refused(tmp_path: Path, damage: str) -> None:
    config = deepseek_config()
    state = random_model(config).state_dict()
    model = model_of(config, "fp32", state)
    found = check_folder_of(tmp_path / "sound", model)
    assert (found.max_logit_difference, found.argmax_equal, found.held_out) == (0.0, True, False)
    changed = {name: tensor.clone() for name, tensor in state.items()}
    if damage == "config":
        other = deepseek_config(routed_scaling_factor=2.0)
        model = HfModel(other, state, model.layout, model.dtype, "byte")
        folder = tmp_path / "sound"
    else:
        folder = tmp_path / "damaged"
        name = {"router": "model.layers.1.mlp.gate.weight", "expert": "model.layers.2.mlp.experts.down_proj"}[damage]
        changed[name][-1] += 0.01
        folder.mkdir()
        write_hf_files(folder, model_of(config, "fp32", changed))
    with pytest.raises(BadInput, match="logits differ"):
        check_folder(folder, model, 4, None)


def check_folder_of(folder: Path, model: HfModel) -> object:
    folder.mkdir()
    write_hf_files(folder, model)
    return check_folder(folder, model, 4, None).verification
