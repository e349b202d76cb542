"""What of a bucket is compressed, what goes exactly, and what becomes of losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch

from geocomm.sync.gradients.bucket_reduction import BucketReducer, BucketReduction
from geocomm.sync.gradients.hook_settings import HookSettings, ReductionPlan
from geocomm.sync.gradients.named_values import Layout, Slice
from support.only_rank import OnlyRank

_LAYOUT = (Slice("weight", 0, 64, exact=False), Slice("bias", 64, 8, exact=True), Slice("last", 72, 64, exact=False))
_SIZE = 136
_BIAS = slice(64, 72)
_TOP_K = "topk:k=128"
_CHOSEN = 5  # of _SIZE elements: 128 of 4096, rounded up


def _reducer() -> tuple[BucketReducer, OnlyRank]:
    rank = OnlyRank()
    plan = ReductionPlan(HookSettings(adaptive=False), ((0, _TOP_K),))
    return BucketReducer(cast(Any, rank), plan), rank


def _gradients(number: int, seed: int = 3) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(_SIZE, generator=generator) for _ in range(number))


def _reduce(
    reducer: BucketReducer, gradient: torch.Tensor, codec: str = _TOP_K, layout: Layout | None = _LAYOUT
) -> tuple[torch.Tensor, BucketReduction]:
    """One step of one bucket."""
    reducer.begin_step()
    reduction = BucketReduction(0, 1)
    result = reducer.reduce(reduction, gradient.clone(), layout, codec, average=False).wait()
    assert reduction.end()
    return result, reduction


def test_exact_slices_are_zero_in_what_is_compressed_and_come_back_exactly() -> None:
    (gradient,) = _gradients(1)
    gradient[_BIAS] *= 100  # would be chosen first
    reducer, rank = _reducer()
    result, reduction = _reduce(reducer, gradient)
    (codec, compressed), (exact_codec, exact) = rank.given
    assert (codec, exact_codec) == (_TOP_K, "none")
    assert torch.equal(exact, gradient[_BIAS])
    assert torch.equal(compressed[:64], gradient[:64])
    assert torch.equal(compressed[72:], gradient[72:])
    assert not compressed[_BIAS].any()
    assert torch.equal(result[_BIAS], gradient[_BIAS])
    assert int(result.count_nonzero()) == _CHOSEN + 8
    assert reduction.row == {"index": 0, "parameters": ["weight", "last"], "elements": _SIZE}


def test_undone_step_leaves_residuals_as_they_were() -> None:
    first, second = _gradients(2)
    reducer, _ = _reducer()
    _reduce(reducer, first)
    before = reducer.residuals.pieces()
    _reduce(reducer, second)
    reducer.undo_step()
    assert before
    torch.testing.assert_close(reducer.residuals.pieces(), before, rtol=0, atol=0)


def test_all_that_is_kept_is_rescaled_with_the_gradients() -> None:
    (gradient,) = _gradients(1)
    reducer, _ = _reducer()
    _reduce(reducer, gradient)
    residuals = reducer.residuals.pieces()
    assert residuals
    reducer.rescale(4.0)
    for name, pieces in reducer.residuals.pieces().items():
        for (_, after), (_, before) in zip(pieces, residuals[name], strict=True):
            assert torch.equal(after, 4 * before)


def test_losses_of_a_step_are_in_the_next_exact_one() -> None:
    first, second = _gradients(2)
    reducer, _ = _reducer()
    sent, _ = _reduce(reducer, first)
    result, reduction = _reduce(reducer, second, "none")
    expected = second + first - sent
    expected[_BIAS] = second[_BIAS]
    torch.testing.assert_close(result, expected)
    assert reduction.row == {}
    assert reducer.residuals.pieces() == {}


def test_losses_that_another_rank_encodes_are_added_once() -> None:
    first, second = _gradients(2)
    reducer, rank = _reducer()
    rank.most_encoded = 64  # of the bucket's elements, so not those of `last`
    reducer.residuals.load({"last": [(0, torch.full((64,), 100.0))]})
    _reduce(reducer, first)
    assert torch.equal(rank.given[0][1][72:], first[72:] + 100)
    _reduce(reducer, second)
    assert torch.equal(rank.given[2][1][72:], second[72:])
    reducer.undo_step()  # the second, in which nothing was added
    assert "last" not in reducer.residuals.pieces()


def test_bucket_of_other_parameters_goes_exactly_and_leaves_what_is_kept() -> None:
    first, second = _gradients(2)
    reducer, rank = _reducer()
    _reduce(reducer, first)
    residuals = reducer.residuals.pieces()
    assert residuals
    result, reduction = _reduce(reducer, second, layout=None)
    assert not reduction.row
    assert rank.given[-1][0] == "none"
    assert torch.equal(result, second)
    torch.testing.assert_close(reducer.residuals.pieces(), residuals, rtol=0, atol=0)


def test_bucket_of_exact_parameters_alone_is_one_exact_reduction() -> None:
    (gradient,) = _gradients(1)
    reducer, rank = _reducer()
    layout = tuple(part._replace(exact=True) for part in _LAYOUT)
    result, reduction = _reduce(reducer, gradient, layout=layout)
    assert [codec for codec, _ in rank.given] == ["none"]
    assert torch.equal(result, gradient)
    assert reduction.row == {}


@pytest.mark.parametrize(
    ("codec", "dtype", "scaled"),
    [
        ("int8", torch.float32, True),
        ("int8", torch.bfloat16, True),
        ("int8", torch.float16, False),  # no room for what a small scale makes of a large value
        (_TOP_K, torch.float32, False),
        ("loco", torch.float32, False),
        ("none", torch.float32, False),
    ],
)
def test_dense_codecs_of_wide_types_get_the_scales_of_an_adaptive_plan(
    codec: str, dtype: torch.dtype, scaled: bool
) -> None:
    rank = OnlyRank()
    reducer = BucketReducer(cast(Any, rank), ReductionPlan.of(HookSettings(adaptive=True)))
    for gradient in _gradients(2):
        _, reduction = _reduce(reducer, gradient.to(dtype), codec)
    compressed = rank.scales if codec == "none" else rank.scales[::2]  # the exact slices are between
    assert [scale is not None for scale in compressed] == [False, scaled]  # learned in the first step
    assert len(rank.scales) == len(compressed) or rank.scales[1::2] == [None, None]
    assert (reduction.scaled > 0) == scaled


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_result_that_is_not_finite_in_an_exact_slice_is_seen(value: float) -> None:
    (gradient,) = _gradients(1)
    reducer, _ = _reducer()
    assert _reduce(reducer, gradient)[1].finite
    gradient[66] = value
    assert not _reduce(reducer, gradient)[1].finite
