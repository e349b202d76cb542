"""The codec string as the backend runs it."""

import pytest

from geocomm.codec import collective_codec
from geocomm.errors import InvalidArgumentError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("asked", "runs"),
    [
        ("none", "none"),
        ("int8", "int8"),
        ("int8:round=stochastic", "int8:round=stochastic"),
        ("int4", "int4:round=stochastic"),
        ("int4:block=128", "int4:block=128,round=stochastic"),
        ("int4:round=nearest", "int4"),
        ("int4:round=nearest,block=64", "int4:block=64"),
    ],
)
def test_collective_codec_without_rounding_int4_is_unbiased(asked: str, runs: str) -> None:
    assert collective_codec(asked) == runs


def test_collective_codec_unknown_name_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="int4"):
        collective_codec("int5")
