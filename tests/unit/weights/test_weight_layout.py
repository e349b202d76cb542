"""Layouts: boxes that are packed have each element once, and what says otherwise is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from geocomm.weights.weight_layout import DTYPES, Box, TensorShape, WeightLayout, pack_boxes

SHAPES = st.lists(st.integers(0, 7), max_size=4).map(tuple)


@given(shapes=st.lists(st.tuples(SHAPES, st.sampled_from(sorted(DTYPES))), max_size=6), part_bytes=st.integers(1, 200))
def test_parts_of_whole_tensors_have_each_element_once_and_are_as_small_as_asked(
    shapes: list[tuple[tuple[int, ...], str]], part_bytes: int
) -> None:
    tensors = [TensorShape(f"t{at}", dtype, shape) for at, (shape, dtype) in enumerate(shapes)]
    boxes = [Box(at, (0,) * len(one.shape), one.shape) for at, one in enumerate(tensors)]
    layout = WeightLayout(tensors=tuple(tensors), parts=tuple(pack_boxes(tensors, boxes, part_bytes)))
    assert WeightLayout.model_validate_json(layout.model_dump_json()) == layout
    seen = [torch.zeros(one.shape, dtype=torch.int64) for one in tensors]
    for part in layout.parts:
        assert part.raw_bytes <= max(part_bytes, DTYPES[part.dtype].itemsize)
        for box, flat in part.cut(part.empty()):
            box.of(seen[box.tensor]).add_(1)
            assert flat.shape == box.sizes
    assert all(bool((one == 1).all()) for one in seen)


def content(**changes: Any) -> dict[str, Any]:
    return {
        "geocomm_layout": 1,
        "tensors": [["w", "bfloat16", [4, 6]]],
        "parts": [["bfloat16", [[0, [0, 0], [4, 3]], [0, [0, 3], [4, 3]]]]],
        **changes,
    }


def test_layout_of_two_boxes_is_good() -> None:
    assert WeightLayout.model_validate(content()).raw_bytes == 48


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": [["bfloat16", [[0, [0, 0], [4, 3]]]]]},  # half of it
        {"parts": [["bfloat16", [[0, [0, 0], [4, 3]], [0, [0, 2], [4, 3]]]]]},  # some twice
        {"parts": [["bfloat16", [[0, [0, 0], [4, 7]]]]]},  # beyond it
        {"parts": [["bfloat16", [[1, [0, 0], [4, 6]]]]]},  # of no tensor
        {"parts": [["bfloat16", [[-1, [0, 0], [4, 6]]]]]},
        {"parts": [["bfloat16", [[0, [0], [4]]]]]},
        {"parts": [["float16", [[0, [0, 0], [4, 6]]]]]},
        {"parts": [["object", [[0, [0, 0], [4, 6]]]]]},
        {"parts": [["bfloat16", []]]},
        {"parts": []},
        {"tensors": [["w", "bfloat16", [4, 6]], ["w", "bfloat16", [0]]]},
        {"tensors": [["__metadata__", "bfloat16", [4, 6]]]},
        {"tensors": [["w\nall is good", "bfloat16", [4, 6]]]},
        {"tensors": [["w", "torch", [4, 6]]]},
        {"tensors": [["w", "bfloat16", [2**47, 2**47]]]},
        {"tensors": [["w", "bfloat16", [-4, -6]]]},
        {"tensors": [["w", "bfloat16", [1] * 17]]},
        {"geocomm_layout": 2},
        {"more": 1},
    ],
)
def test_layout_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WeightLayout.model_validate_json(json.dumps(content(**changes)))


def test_tensor_that_is_cut_too_finely_is_refused_in_a_moment() -> None:
    boxes = [[0, [0, at], [1, 1]] for at in range(4000)]
    with pytest.raises(ValidationError, match="too finely"):
        WeightLayout.model_validate({"tensors": [["w", "bfloat16", [1, 4000]]], "parts": [["bfloat16", boxes]]})


def test_part_beyond_a_gigabyte_is_refused() -> None:
    with pytest.raises(ValidationError, match="too many"):
        WeightLayout.model_validate(
            {"tensors": [["w", "float32", [2**28 + 1]]], "parts": [["float32", [[0, [0], [2**28 + 1]]]]]}
        )
