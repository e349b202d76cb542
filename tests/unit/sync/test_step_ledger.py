"""Which steps of a reduction count, and what an undone one leaves."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from geocomm.sync.gradients.bucket_reduction import BucketReducer
from geocomm.sync.gradients.gradient_hook import StepLedger
from geocomm.sync.gradients.hook_settings import GradientShard, HookSettings, ReductionPlan
from geocomm.sync.gradients.named_values import Slice
from geocomm.sync.gradients.quality_guard import QualityGuard
from support.only_rank import OnlyRank

_LAYOUT = (Slice("weight", 0, 4096, exact=False),)
_CODEC = "topk:k=64"


class _Guard:
    def __init__(self) -> None:
        self.shown: list[tuple[float, float, float, int]] = []

    def add(self, *sums: Any) -> None:
        self.shown.append(cast(Any, sums))


class _Steps:
    """A ledger over two buckets."""

    def __init__(self) -> None:
        self.guard = _Guard()
        plan = ReductionPlan(HookSettings(adaptive=False), ((0, _CODEC),))
        self.buckets = BucketReducer(cast(Any, OnlyRank()), plan)
        self.ledger = StepLedger(self.buckets, cast(QualityGuard, self.guard), GradientShard())
        self._generator = torch.Generator().manual_seed(1)

    def step(self, *, broken: bool = False, whole: bool = True, codec: str = _CODEC, factor: int = 1) -> None:
        """One step, and its end."""
        self.ledger.begin_step()
        for index in (1, 0):  # as DDP does: the last layers come first
            gradient = torch.randn(4096, generator=self._generator)
            if broken and index == 0:
                gradient[7] = float("nan")
            reduction = self.ledger.begin_bucket(index, factor)
            layout = (_LAYOUT[0]._replace(name=f"weight{index}"),)
            self.buckets.reduce(reduction, gradient, layout, codec, average=True).wait()
        if whole:
            self.ledger.end_step()
        assert self.ledger.settle()

    def residuals(self) -> dict[str, torch.Tensor]:
        return {name: pieces[0][1] for name, pieces in self.buckets.residuals.pieces().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_step_that_counts_is_in_the_rows_and_shown_to_the_guard() -> None:
    steps = _Steps()
    steps.step()
    residuals = steps.residuals()
    squares = {name: float(values.double().square().sum()) for name, values in residuals.items()}
    assert [row["index"] for row in steps.ledger.rows] == [0, 1]
    for row in steps.ledger.rows:
        (name,) = row["parameters"]
        assert row["ef_norm"] == pytest.approx(squares[name] ** 0.5)
        assert 0.5 < row["nmse"] < 1
    ((residual_square, input_square, gradient_square, not_finite),) = steps.guard.shown
    assert residual_square == pytest.approx(sum(squares.values()))
    assert input_square == pytest.approx(residual_square + gradient_square, rel=1e-3)  # it sends exact values
    assert not_finite == 0
    assert (steps.ledger.steps, steps.ledger.skipped_steps) == (1, 0)


def test_square_of_the_gradients_is_that_of_their_sum_over_the_ranks() -> None:
    plain, larger = _Steps(), _Steps()
    plain.step()
    larger.step(factor=3)
    ((_, _, plain_square, _),), ((_, _, larger_square, _),) = plain.guard.shown, larger.guard.shown
    assert larger_square == pytest.approx(9 * plain_square)


@pytest.mark.parametrize("fault", [{"broken": True}, {"whole": False}])
def test_step_that_does_not_count_leaves_residuals_as_they_were(fault: dict[str, bool]) -> None:
    steps = _Steps()
    steps.step()
    before = steps.residuals()
    steps.step(**fault)
    assert same(steps.residuals(), before)
    assert len(steps.guard.shown) == 1
    assert (steps.ledger.steps, steps.ledger.skipped_steps) == (2, 1)
    assert not steps.ledger.undo()


def test_settled_step_is_undone_once_and_not_after_the_next_began() -> None:
    steps = _Steps()
    steps.step()
    before = steps.residuals()
    steps.step()
    assert not same(steps.residuals(), before)
    assert steps.ledger.undo()
    assert same(steps.residuals(), before)
    assert not steps.ledger.undo()
    steps.step()
    steps.ledger.begin_step()
    assert not steps.ledger.undo()
    assert steps.ledger.skipped_steps == 1


def test_step_is_settled_once() -> None:
    steps = _Steps()
    assert not steps.ledger.settle()
    steps.step()
    assert not steps.ledger.settle()


def test_exact_step_has_no_rows_and_is_not_shown_to_the_guard() -> None:
    steps = _Steps()
    steps.step(codec="none")
    assert steps.ledger.rows == []
    assert steps.guard.shown == []


def test_restart_counts_on_and_forgets_what_was_undoable() -> None:
    steps = _Steps()
    steps.step()
    steps.ledger.restart(40)
    assert (steps.ledger.steps, steps.ledger.rows) == (40, [])
    assert not steps.ledger.undo()
