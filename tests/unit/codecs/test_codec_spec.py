"""Codec strings as values."""

from __future__ import annotations

import pytest

from geocomm.codecs.codec_spec import codec_spec
from geocomm.codecs.tensor_codec import codec_names, codec_presets
from geocomm.core.errors import InvalidArgumentError


def test_codec_spec_has_the_parts_of_its_string() -> None:
    spec = codec_spec("int4:block=128,round=stochastic+huffman")
    assert spec.family == "int4"
    assert spec.settings == {"block": "128", "round": "stochastic"}
    assert spec.given == ("block", "round")
    assert spec.stage == "huffman"
    assert not spec.exact
    assert not spec.needs_feedback


def test_codec_spec_of_a_preset_is_that_of_what_it_stands_for() -> None:
    for preset, codec in codec_presets().items():
        assert codec_spec(preset) == codec_spec(codec)
        assert hash(codec_spec(preset)) == hash(codec_spec(codec))
    assert codec_spec("balanced").family == "bitplanes"
    assert codec_spec("tiny").needs_feedback


def test_codec_spec_as_text_gives_the_same_again() -> None:
    for codec in (*codec_names(), *codec_presets(), "topk:k=9,values=fp32+zstd", "loco:k=9"):
        spec = codec_spec(codec)
        assert codec_spec(str(spec)) == spec


def test_exact_codecs_are_those_that_lose_nothing() -> None:
    assert {codec for codec in codec_names() if codec_spec(codec).exact} == {"none", "lossless"}


def test_with_setting_leaves_the_rest_alone() -> None:
    spec = codec_spec("int8+huffman")
    changed = spec.with_setting("round", "stochastic")
    assert str(changed) == "int8:round=stochastic+huffman"
    assert changed.given == ("round",)
    assert str(spec) == "int8+huffman"
    assert changed != spec


def test_codec_spec_does_not_change() -> None:
    spec = codec_spec("int8")
    with pytest.raises(AttributeError):
        spec.family = "int4"  # type: ignore[misc]
    spec.settings["block"] = "64"
    assert spec.settings["block"] == "256"


@pytest.mark.parametrize(
    ("codec", "key", "value"),
    [
        ("loco", "values", "bit2"),
        ("loco", "k", "2049"),
        ("int8", "k", "64"),
        ("int8", "block", "9"),
        ("none", "block", "64"),
    ],
)
def test_with_setting_that_cannot_be_is_refused(codec: str, key: str, value: str) -> None:
    with pytest.raises(InvalidArgumentError, match=codec):
        codec_spec(codec).with_setting(key, value)


def test_codec_spec_of_a_misspelled_name_names_the_nearest() -> None:
    with pytest.raises(InvalidArgumentError, match="deadzone"):
        codec_spec("deadzoen:step=1")
