"""The codec string as the backend runs it."""

import pytest

from geocomm.codecs.codec_spec import collective_codec
from geocomm.core.errors import InvalidArgumentError, UnsupportedError
from support.harness import Ranks


@pytest.mark.parametrize(
    ("asked", "runs"),
    [
        ("none", "none"),
        ("lossless", "lossless"),
        ("int8", "int8"),
        ("int8+huffman", "int8+huffman"),
        ("int8:round=stochastic", "int8:round=stochastic"),
        ("int4", "int4:round=stochastic"),
        ("int4+huffman", "int4:round=stochastic+huffman"),
        ("int4:block=128", "int4:block=128,round=stochastic"),
        ("int4:block=128+huffman", "int4:block=128,round=stochastic+huffman"),
        ("int4:round=nearest", "int4"),
        ("int4:round=nearest,block=64", "int4:block=64"),
        ("balanced", "bitplanes"),
        ("small", "bitplanes:step=1"),
        ("bit1:block=256", "bit1"),
    ],
)
def test_collective_codec_without_rounding_int4_is_unbiased(asked: str, runs: str) -> None:
    assert str(collective_codec(asked)) == runs


def test_collective_codec_unknown_name_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="int4"):
        collective_codec("int5")


@pytest.mark.parametrize("codec", ["tiny", "topk", "topk:k=2048,values=fp32", "loco"])
def test_collective_codec_that_needs_error_feedback_is_refused(codec: str) -> None:
    with pytest.raises(UnsupportedError, match="residual"):
        collective_codec(codec)


def _use_codecs() -> None:
    for codec in ("int8", "lossless", "balanced", "balanced", "balanced"):
        collective_codec(codec)


def test_dead_zone_without_error_feedback_is_warned_of_once() -> None:
    with Ranks([None]) as alone:
        alone.run(_use_codecs)
        (line,) = alone.output(0).splitlines()
    assert "geocomm warning: codec 'balanced'" in line
