"""The handle of a gradient hook, which reduces gradients with error feedback for DDP, FSDP and the training driver.

A step of the reduction is ended once, and either counts on all ranks or is undone on all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from geocomm.core.message_log import logger
from geocomm.core.typed_torch import all_reduce, device_of_group
from geocomm.group.backend.runtime import runtime
from geocomm.metrics.events import events
from geocomm.metrics.sources import register_handle
from geocomm.sync.gradients.bucket_reduction import BucketReducer, BucketReduction
from geocomm.sync.gradients.device_order import DeviceOrder
from geocomm.sync.gradients.feedback_state import VERSION, check_state
from geocomm.sync.gradients.hook_settings import EXACT, GradientShard, ReductionPlan
from geocomm.sync.gradients.named_values import Layout
from geocomm.sync.gradients.quality_guard import QualityGuard, finer_codec

if TYPE_CHECKING:
    from geocomm._C import ProcessGroupGeocomm


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


_WHOLE = GradientShard()


class GradientHook:
    """The handle of a hook, which `geocomm.ddp_hook` and `geocomm.fsdp_hook` return.

    Call its methods between steps: after backward, before the next forward.
    """

    # It reduces the buckets of each step, and keeps by parameter what the codec loses. For what feeds it, a step is
    # `begin_step`, `reduce` for each bucket, `end_step`; the same on all ranks.

    def __init__(
        self,
        kind: str,
        group: dist.ProcessGroup,
        parameters: Mapping[str, torch.Tensor],
        plan: ReductionPlan,
        shard: GradientShard = _WHOLE,
        numel_of: Mapping[str, int] | None = None,
    ) -> None:
        """kind: for stats(); group: the replicas; numel_of: elements of each parameter in this shard, if not all.

        Raises InvalidArgumentError for a group of another backend.
        """
        self._kind = kind
        self._group = group
        self._backend: ProcessGroupGeocomm = runtime.group_of(group).backend
        self._plan = plan
        self._shard = shard
        self._numel_of = {name: one.numel() for name, one in parameters.items()} if numel_of is None else dict(numel_of)
        self._exact_names = plan.settings.exact_names({name: one.shape for name, one in parameters.items()})
        self._buckets = BucketReducer(self._backend, plan)
        self._guard = QualityGuard(plan.settings.guard_steps) if plan.settings.guard else None
        self._ledger = StepLedger(self._buckets, self._guard if self._backend.spans_sites else None, shard)
        self._fallback: str | None = None  # of the guard
        self._fallbacks: list[dict[str, Any]] = []
        self._order = DeviceOrder()
        self._step_codec = EXACT
        self._publish()
        register_handle("gradients", self)

    # ---- what feeds it

    def begin_step(self) -> None:
        """Settle the last step and begin another: before its first `reduce`."""
        with self._order:
            self._settle()
            if self._guard is not None:
                self._fall_back_if_due(self._guard)
            self._step_codec = self.codec
            self._ledger.begin_step()

    def reduce(
        self, index: int, buffer: torch.Tensor, layout: Layout | None, *, average: bool = True
    ) -> torch.futures.Future[torch.Tensor]:
        """The mean (or sum) of `buffer` over the ranks, in place: flat, dense, of the bucket `index`.

        layout: parameters in the buffer; None: not the usual ones, so it goes exactly and the bucket's values wait.
        On a GPU everything is enqueued at once, behind the current stream; waiting for the future blocks a stream.
        """
        self._order.device = buffer.device
        with self._order:
            reduction = self._ledger.begin_bucket(index, self._backend.size() if average else 1)
            return self._buckets.reduce(reduction, buffer, layout, self._step_codec, average=average)

    def end_step(self) -> None:
        """End a step after its last `reduce`, which need not be done; of a model in shards when all are done."""
        self._ledger.end_step()
        if self._guard is not None:
            self._guard.exchange_if_due(self._group)
        if self._shard.group is not None:
            self._settle()

    # ---- what its user asks

    @property
    def codec(self) -> str:
        """The codec of the next step: none in the first steps, then that of the settings or a finer one."""
        scheduled = [codec for first, codec in self._plan.schedule if first <= self._ledger.steps][-1]
        return scheduled if scheduled == EXACT or self._fallback is None else self._fallback

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Where this rank is: rank among the replicas, their number; shard of the gradients, number of shards."""
        return self._backend.rank(), self._backend.size(), self._shard.index, self._shard.count

    def is_exact(self, name: str) -> bool:
        """Say whether a parameter always goes exactly.

        Args:
            name: As `model.named_parameters()` has it.

        Returns:
            True for the parameters that `HookSettings.exact` and `exact_below` leave alone.
        """
        return name in self._exact_names

    def stats(self) -> dict[str, Any]:
        """Count what the hook did at this rank, as of the last step that ended. It waits for that step.

        Returns:
            `kind`: of the hook. `steps`: begun so far. `codec`: of the next one. `skipped_steps`: those undone, since a
            gradient was not finite or an operation failed. `fallbacks`: step, codec and reason of each. `buckets`: of
            each bucket that was compressed `index`, `parameters`, `elements` (of its residual on this rank), `ef_norm`
            (the residual's L2 norm, in units of the sum over ranks; with `adaptive`, of what was divided by the
            scales), `nmse` (its square by that of what was encoded; 0: nothing lost, 1: everything), `wire_bytes`.

        Example:
            The worst bucket of the last step; in a step that was undone none has an `nmse`:

                worst = max((bucket.get("nmse", 0.0) for bucket in hook.stats()["buckets"]), default=0.0)
        """
        self._settle()
        return self.last_stats()

    def last_stats(self) -> dict[str, Any]:
        """Return what `stats` does, of the last step whose outcome is known already. It waits for nothing.

        Returns:
            As of `stats`. Any thread may ask.
        """
        found = dict(self._published)
        return found | {name: [dict(row) for row in found[name]] for name in ("fallbacks", "buckets")}

    def undo_step(self) -> None:
        """Put the residuals back to what they were before the last backward, whose gradients were thrown away.

        Call it on all ranks. Steps with a gradient that is not finite, such as GradScaler skips, need no call.
        """
        self._settle()
        if self._ledger.undo():
            self._publish()

    def rescale(self, factor: float) -> None:
        """Multiply the residuals, which are in units of the scaled loss. Call it on all ranks.

        Args:
            factor: The new loss scale by the old one.
        """
        with self._order:
            self._settle()
            self._buckets.rescale(factor)

    def state_dict(self) -> dict[str, Any]:
        """Copy this rank's part of the state, which each rank saves for itself. Not collective.

        Returns:
            Plain values, strings and tensors on the CPU. `residual`: {parameter: [(first element, float32 values)]}.
        """
        with self._order:
            self._settle()
            rank, ranks, shard, shards = self.place
            return {
                "version": VERSION,
                "rank": rank,
                "ranks": ranks,
                "shard": shard,
                "shards": shards,
                "steps": self._ledger.steps,
                "configured": self._plan.last_codec,
                "fallback": self._fallback,
                "residual": self._buckets.residuals.pieces(),
                "momentum": {},  # the format has it, and no hook any more
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state. All ranks load, each its own.

        Sites and buckets may have changed: a value that another rank has to encode from now on goes to it with the next
        step's gradients. The guard's codec is taken over if the hook was made for the same codec.

        Args:
            state: What `state_dict` returned at this rank, or what `geocomm.reshard_feedback` made of it for another
                number of ranks.

        Raises:
            InvalidArgumentError: The state is of another rank, number of ranks or model.
        """
        check_state(state, self.place, self._numel_of)
        self._settle()
        self._buckets.residuals.load(state["residual"])
        self._buckets.scales.forget()
        self._ledger.restart(state["steps"])
        self._fallback = state["fallback"] if state["configured"] == self._plan.last_codec else None
        if self._guard is not None:
            self._guard.forget()
        self._publish()

    def _settle(self) -> None:
        if self._ledger.settle():
            self._publish()

    def _fall_back_if_due(self, guard: QualityGuard) -> None:
        """Go on with a finer codec where the guard says so, which it does on all ranks alike."""
        reason = guard.verdict(self._backend.size(), self._shard.group)
        before = self.codec
        finer = finer_codec(before) if reason else None
        if finer is None:
            return
        self._fallback = finer
        step = self._ledger.steps
        self._fallbacks.append({"step": step, "codec": finer, "reason": reason})
        events.record("codec_fallback", hook=self._kind, step=step, before=before, codec=finer, reason=reason)
        guard.forget()
        if self._backend.rank() == self._shard.index == 0:
            logger().warning(f"gradients: codec {before} to {finer} from step {step} on, on all ranks: {reason}")

    def _publish(self) -> None:
        """Make what `last_stats` shows, in one assignment: other threads read it."""
        self._published: dict[str, Any] = {
            "kind": self._kind,
            "steps": self._ledger.steps,
            "codec": self.codec,
            "skipped_steps": self._ledger.skipped_steps,
            "fallbacks": [dict(one) for one in self._fallbacks],
            "buckets": [dict(row) for row in self._ledger.rows],
        }
