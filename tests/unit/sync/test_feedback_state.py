"""Which states of a gradient hook a rank takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from geocomm.core.errors import InvalidArgumentError
from geocomm.sync.gradients.feedback_state import VERSION, check_state

_PLACE = (1, 3, 0, 2)
_NUMEL_OF = {"w": 6}


def _state(**changed: Any) -> dict[str, Any]:
    place = {"version": VERSION, "rank": 1, "ranks": 3, "shard": 0, "shards": 2}
    return place | {"residual": {"w": [(0, torch.ones(4)), (4, torch.ones(2))]}, "momentum": {}} | changed


def test_state_of_the_same_place_and_model_is_taken() -> None:
    check_state(_state(), _PLACE, _NUMEL_OF)


@pytest.mark.parametrize("kind", ["residual", "momentum"])
@pytest.mark.parametrize(
    ("held", "named"),
    [
        ({"v": [(0, torch.ones(4))]}, "v, which is no parameter"),
        ({"w": [(-1, torch.ones(4))]}, "6 elements"),
        ({"w": [(0, torch.ones(2, 3))]}, "6 elements"),
        ({"w": [(3, torch.ones(4))]}, "6 elements"),
    ],
)
def test_values_that_do_not_fit_the_model_are_refused(kind: str, held: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        check_state(_state(**{kind: held}), _PLACE, _NUMEL_OF)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"version": VERSION + 1}, "version"),
        ({"rank": 2}, "rank 2 of 3"),
        ({"ranks": 4}, "rank 1 of 4"),
        ({"shard": 1}, "shard 1 of 2"),
        ({"shards": 4}, "shard 0 of 4"),
    ],
)
def test_state_of_another_place_or_version_is_refused(changed: dict[str, int], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        check_state(_state(**changed), _PLACE, _NUMEL_OF)
