"""The steps of a reduction of gradients: each is ended once, and either counts on all ranks or is undone on all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from geocomm.core.typed_torch import all_reduce, device_of_group
from geocomm.sync.gradients.bucket_reduction import BucketReducer, BucketReduction
from geocomm.sync.gradients.hook_settings import GradientShard
from geocomm.sync.gradients.quality_guard import QualityGuard


class StepLedger:
    """What is under way in the current step, and what became of those before.

    A step is ended ("settled") when the next begins or when somebody asks: what it did to the residuals is kept if the
    step was whole and all values are finite, which all ranks see alike.
    """

    def __init__(self, buckets: BucketReducer, guard: QualityGuard | None, shard: GradientShard) -> None:
        """guard: of a group that spans sites, else None: it is shown each step that compressed something."""
        self._buckets = buckets
        self._guard = guard
        self._shard = shard
        self._under_way: list[BucketReduction] = []
        self._whole = False
        self._undoable = False
        self.steps = 0
        """How many were begun."""
        self.skipped_steps = 0
        """How many were undone."""
        self.rows: list[dict[str, Any]] = []
        """What `stats()` shows of the last settled step: a row for each bucket that was compressed, by its index."""

    def begin_step(self) -> None:
        """Count a step; the last one is settled, and can no longer be undone."""
        self._buckets.begin_step()
        self.rows = []
        self._undoable = False
        self.steps += 1

    def begin_bucket(self, index: int, factor: int) -> BucketReduction:
        """Enter a bucket into the step; a step in which one fails to be reduced is undone."""
        reduction = BucketReduction(index, factor)
        self._under_way.append(reduction)
        return reduction

    def end_step(self) -> None:
        """Note that all buckets of the step were entered."""
        self._whole = True

    def settle(self) -> bool:
        """End the last step if it has not been ended; returns whether there was one. Waits for its reductions."""
        step, self._under_way = self._under_way, []
        whole, self._whole = self._whole, False
        if not step:
            return False
        good = [reduction.end() and reduction.finite for reduction in step]
        for reduction, kept in zip(step, good, strict=True):
            if reduction.observed and not kept:
                self._buckets.scales.forget_last(reduction.bucket)
        if whole and self._agree(all(good)):
            self._undoable = True
            self._record(step)
        else:
            self._undo()
        rows = {reduction.bucket: reduction.row for reduction in step if reduction.row}
        self.rows = [row for _, row in sorted(rows.items())]
        return True

    def undo(self) -> bool:
        """Undo the settled step if it counted and none has begun since; returns whether it was."""
        if not self._undoable:
            return False
        self._undo()
        return True

    def restart(self, steps: int) -> None:
        """Go on after `steps` steps, with values that no step of this process has made."""
        self.steps = steps
        self.rows = []
        self._undoable = False

    def _agree(self, good: bool) -> bool:
        """Replicas see the same results, shards do not: whether the step was good in all of them."""
        if self._shard.group is None:
            return good
        verdict = torch.tensor([int(good)], device=device_of_group(self._shard.group))
        all_reduce(verdict, dist.ReduceOp.MIN, self._shard.group)
        return bool(verdict.item())

    def _undo(self) -> None:
        self._buckets.undo_step()
        self._undoable = False
        self.skipped_steps += 1

    def _record(self, step: Sequence[BucketReduction]) -> None:
        """Complete the rows of a step that counts, and show the guard its sums."""
        residual_square = input_square = gradient_square = 0.0
        not_finite = 0
        compressed = [reduction for reduction in step if reduction.row]
        for reduction in compressed:
            row = reduction.row
            feedback = reduction.works[0].feedback()
            # A rank that encodes nothing has nothing to commit.
            not_finite += not feedback["committed"] and row["elements"] > 0
            residual_square += feedback["residual_square"]
            input_square += feedback["input_square"]
            own = feedback["scaled_square"] * reduction.scaled if reduction.scaled else reduction.squares[0].read()
            gradient_square += own * reduction.factor**2
            row["ef_norm"] = feedback["residual_square"] ** 0.5
            row["nmse"] = feedback["residual_square"] / feedback["input_square"] if feedback["input_square"] else 0.0
            row["wire_bytes"] = feedback["wire_bytes"]
        if compressed and self._guard is not None:
            self._guard.add(residual_square, input_square, gradient_square, not_finite)
