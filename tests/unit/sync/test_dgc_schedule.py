"""What dgc_hook refuses, and the shares that it sends step by step."""

from __future__ import annotations

from typing import Any, cast

import pytest

from geocomm.core.errors import InvalidArgumentError
from geocomm.sync.gradients.dgc_hook import _schedule, dgc_hook


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"ratio": 0.0}, "ratio"),
        ({"ratio": 0.51}, "ratio"),
        ({"momentum": -0.1}, "momentum"),
        ({"momentum": 1.0}, "momentum"),
        ({"ramp_steps": 0}, "ramp_steps"),
        ({"ratio": 0.5, "momentum": 0.0, "ramp_steps": 1}, "DistributedDataParallel"),  # in range, but for the model
    ],
)
def test_numbers_out_of_their_range_and_other_models_are_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        dgc_hook(cast(Any, None), **arguments)


def test_shares_fall_by_a_quarter_from_a_quarter_to_the_ratio() -> None:
    assert _schedule(0.01, 10, 100) == (
        (0, "none"),
        (10, "topk:k=1024"),
        (110, "topk:k=256"),
        (210, "topk"),  # of 64, the default
        (310, "topk:k=41"),
    )


def test_schedule_without_exact_steps_begins_with_the_largest_share() -> None:
    assert _schedule(0.25, 0, 5) == ((0, "topk:k=1024"),)
    assert _schedule(0.5, 0, 5) == ((0, "topk:k=2048"),)
    assert _schedule(0.0625, 0, 5) == ((0, "topk:k=1024"), (5, "topk:k=256"))


def test_one_of_a_chunk_is_sent_at_least() -> None:
    assert _schedule(1e-6, 0, 5)[-1][1] == "topk:k=1"
