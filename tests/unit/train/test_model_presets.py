"""Model sizes, checked by counting parameters without allocating them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from geocomm.core.bad_input import BadInput
from geocomm.data.corpus.data_settings import DataConfig
from geocomm.data.corpus.text_tokenizer import ByteTokenizer
from geocomm.train.models.model_factory import (
    build_model,
    identity_differences,
    model_config,
    model_identity,
    parameter_count,
)
from geocomm.train.models.model_presets import PRESETS, ModelConfig


def _config(**fields: object):  # noqa: ANN202 - the type comes from an optional package
    return model_config(ModelConfig.model_validate(fields), DataConfig(), ByteTokenizer())


@pytest.mark.parametrize(
    ("preset", "smallest", "largest"),
    [
        ("tiny", 3e6, 6e6),
        ("small", 2.0e8, 2.6e8),
        ("deepseek-v2-lite", 15.65e9, 15.75e9),  # published: 15.7B
        ("deepseek-v3", 670.5e9, 671.5e9),  # published: 671B
    ],
)
def test_preset_has_the_stated_size(preset: str, smallest: float, largest: float) -> None:
    assert smallest < parameter_count(_config(preset=preset)) < largest


def test_every_preset_stands_in_the_documentation_with_its_size() -> None:
    document = (Path(__file__).parents[3] / "docs" / "tutorials" / "train-a-model.md").read_text()
    for preset in PRESETS:
        count = parameter_count(_config(preset=preset))
        text = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"
        assert f"| `{preset}` | {text} |" in document


@pytest.mark.parametrize(
    "fields",
    [
        {"preset": "tyni"},
        {"overrides": {"hiden_size": 4}},
        {"overrides": {"hidden_size": "wide"}},
        {"overrides": {"vocab_size": 100}},
        {"overrides": {"rope_parameters": {"rope_type": "yarn"}}},
        {"overrides": {"max_position_embeddings": 100}},
        {"path": "/nonexistent"},
    ],
)
def test_unusable_model_is_refused_in_one_line(fields: dict[str, object]) -> None:
    with pytest.raises(BadInput) as caught:
        _config(**fields)
    assert "\n" not in str(caught.value)


def test_fields_that_follow_from_an_override_follow_it() -> None:
    """The width of heads does: the rotary part has the width of `head_dim`."""
    settings = ModelConfig.model_validate({"overrides": {"qk_rope_head_dim": 8}})
    model = build_model(settings, _config(overrides={"qk_rope_head_dim": 8}), seed=0)
    with torch.no_grad():
        assert model(input_ids=torch.zeros(1, 4, dtype=torch.long)).logits.isfinite().all()


def test_identity_sees_sizes_and_ignores_how_a_model_is_stored() -> None:
    one, other = _config(), _config(overrides={"hidden_size": 320})
    one.transformers_version = "0"
    assert model_identity(one) == model_identity(_config())
    assert "hidden_size is 256, here 320" in identity_differences(model_identity(one), model_identity(other))


def test_folder_without_or_with_damaged_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        _config(path=tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadInput):
        _config(path=tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no_such_model"}')
    with pytest.raises(BadInput):
        _config(path=tmp_path)
