"""What a reduction of gradients with error feedback does for each buffer of a step, and keeps from step to step."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from geocomm.errors import InvalidArgumentError, UnsupportedError
from geocomm.gradients.device_order import (
    DeviceOrder,
    LaterValue,
    device_of_group,
    is_read_later,
    keep_for_stream,
    square_of,
)
from geocomm.gradients.element_scales import ElementScales
from geocomm.gradients.feedback_state import VERSION, check_state
from geocomm.gradients.named_values import Layout, NamedValues
from geocomm.gradients.quality_guard import QualityGuard, finer_codec
from geocomm.live_handles import register_handle
from geocomm.native import native
from geocomm.options import LOG_LEVELS

if TYPE_CHECKING:
    from geocomm._C import FeedbackWork, ProcessGroupGeocomm

_EXACT = "none"


@dataclass(frozen=True)
class HookSettings:
    """What the hooks were given. schedule: (first step, codec), ascending, from step 0 on."""

    schedule: tuple[tuple[int, str], ...]
    exact: tuple[str, ...]
    exact_below: int
    decay: float
    guard_steps: int | None
    momentum: float = 0.0
    adaptive: bool = False

    def validate(self) -> None:
        """Raises InvalidArgumentError."""
        for _, codec in self.schedule:
            native().canonical_codec(codec)
        if not 0 <= self.decay <= 1:
            raise InvalidArgumentError(f"decay is {self.decay}; it must be from 0 to 1")
        if not 0 <= self.momentum < 1:
            raise InvalidArgumentError(f"momentum is {self.momentum}; it must be from 0 on and below 1")
        if self.guard_steps is not None and self.guard_steps < 1:
            raise InvalidArgumentError(f"guard_steps is {self.guard_steps}; it must be 1 or more")
        for pattern in self.exact:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InvalidArgumentError(f"exact: {pattern!r} is not a regular expression: {error}") from error


def feedback_settings(
    codec: str,
    warmup_steps: int,
    exact: Sequence[str],
    exact_below: int,
    decay: float,
    guard_steps: int | None,
    *,
    adaptive: bool = True,
) -> HookSettings:
    """Of a hook with one codec after its exact steps. Raises InvalidArgumentError."""
    if warmup_steps < 0:
        raise InvalidArgumentError(f"warmup_steps is {warmup_steps}; it must be 0 or more")
    schedule = ((0, _EXACT), (warmup_steps, codec)) if warmup_steps else ((0, codec),)
    return HookSettings(schedule, tuple(exact), exact_below, decay, guard_steps, adaptive=adaptive)


def require_devices(what: str, devices: Iterable[torch.device]) -> None:
    """Raises UnsupportedError for parameters that are neither on CPUs nor on CUDA devices, or on both."""
    found = sorted({device.type for device in devices})
    if len(found) > 1 or not set(found) <= {"cpu", "cuda"}:
        raise UnsupportedError(
            f"{what} takes parameters that are all on CPUs or all on CUDA devices, not on {', '.join(found)}; without "
            "a hook the codec of the process group compresses their gradients (geocomm.Options(codec='int8'))"
        )


@dataclass(frozen=True)
class Shard:
    """Which part of the model's gradients this rank reduces with its replicas; group: the ranks that hold the parts."""

    index: int = 0
    count: int = 1
    group: dist.ProcessGroup | None = None


@dataclass
class _Reduction:
    """A bucket under way in this step."""

    bucket: int
    factor: int  # from the result to the sum over the ranks
    works: list[FeedbackWork] = field(default_factory=list)
    done: torch.futures.Future[torch.Tensor] | None = None
    squares: list[LaterValue] = field(default_factory=list)  # of each work's result: squared L2 norm; none: failed
    usual: bool = True  # its parameters are
    scaled: float = 0.0  # elements for each that this rank encoded over a scale; 0: none
    observed: bool = False  # by the scales, good or not

    def end(self) -> bool:
        """Blocks the host until it has ended, one way or the other; whether it succeeded."""
        if self.done is not None:
            with contextlib.suppress(Exception):
                self.done.wait()  # on a GPU: it blocks the current stream
        ended = [work.succeeded() for work in self.works]
        return all(ended) and bool(self.squares)

    @property
    def finite(self) -> bool:
        """Blocks the host until it is known."""
        return all(math.isfinite(square.read()) for square in self.squares)


_WHOLE = Shard()


class HookState:
    """The handle that the hooks return. Call its methods between steps: after backward, before the next forward.

    For what feeds it, a step is: `begin_step`, `reduce` for each bucket, `end_step`; the same on all ranks.
    """

    def __init__(
        self,
        kind: str,
        group: dist.ProcessGroup,
        parameters: Mapping[str, torch.Tensor],
        settings: HookSettings,
        shard: Shard = _WHOLE,
        numel_of: Mapping[str, int] | None = None,
    ) -> None:
        """kind: for stats(); group: the replicas; numel_of: elements of each parameter in this shard, if not all.

        Raises InvalidArgumentError for a group of another backend, and what `settings` have wrong.
        """
        from geocomm.backend import process

        settings.validate()
        self._kind = kind
        self._group = group
        self._backend: ProcessGroupGeocomm = process.group_of(group).backend
        self._settings = settings
        self._shard = shard
        self._numel_of = {name: one.numel() for name, one in parameters.items()} if numel_of is None else dict(numel_of)
        self._exact_names = {name for name, parameter in parameters.items() if _is_exact(name, parameter, settings)}
        self._residuals = NamedValues()
        self._momenta = NamedValues()
        self._scales = ElementScales()
        self._guard = None if settings.guard_steps is None else QualityGuard(settings.guard_steps)
        self._fallback: str | None = None  # of the guard
        self._steps = 0
        self._skipped_steps = 0
        self._fallbacks: list[dict[str, Any]] = []
        self._rows: dict[int, dict[str, Any]] = {}
        self._order = DeviceOrder()
        self._step: list[_Reduction] = []  # the step under way, or ended and not settled
        self._step_codec = _EXACT
        self._step_whole = False
        self._undoable = False
        self._publish()
        register_handle(self)

    @property
    def codec(self) -> str:
        """That of the next step."""
        scheduled = [codec for first, codec in self._settings.schedule if first <= self._steps][-1]
        return scheduled if scheduled == _EXACT or self._fallback is None else self._fallback

    def stats(self) -> dict[str, Any]:
        """Of this rank, as of the last step that ended.

        kind: of the hook; steps: begun so far; codec: of the next one; skipped_steps: those undone, since a gradient
        was not finite or an operation failed; fallbacks: step, codec and reason of each; buckets: per bucket that was
        compressed, index, parameters, elements: of its residual on this rank, ef_norm: the residual's L2 norm, in units
        of the sum over ranks (with `adaptive`, of what was divided by the scales), nmse: its square by that of what was
        encoded (0: nothing lost, 1: everything), wire_bytes.
        """
        self._settle()
        return self.last_stats()

    def last_stats(self) -> dict[str, Any]:
        """`stats()` as of the last step that was settled, with `kind` of the hook; from any thread."""
        found = dict(self._published)
        return found | {name: [dict(row) for row in found[name]] for name in ("fallbacks", "buckets")}

    def undo_step(self) -> None:
        """For a step whose gradients were thrown away: the residuals are as before its backward. Call it on all ranks.

        Steps with a gradient that is not finite, such as GradScaler skips, are undone without this call.
        """
        self._settle()
        if self._undoable:
            self._undo()
            self._publish()

    def rescale(self, factor: float) -> None:
        """Multiply the residuals: after a change of the loss scale, by new / old scale. Call it on all ranks."""
        with self._order:
            self._settle()
            for values in (self._residuals, self._momenta):
                values.scale(factor)
            self._scales.scale(factor)

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of the state: saved by each rank for itself. Not collective.

        Plain values, strings and tensors on the CPU: residual: {parameter: [(first element, float32 values)]}, likewise
        momentum.
        """
        with self._order:
            self._settle()
            return {
                "version": VERSION,
                "rank": self._backend.rank(),
                "ranks": self._backend.size(),
                "shard": self._shard.index,
                "shards": self._shard.count,
                "steps": self._steps,
                "configured": self._settings.schedule[-1][1],
                "fallback": self._fallback,
                "residual": self._residuals.pieces(),
                "momentum": self._momenta.pieces(),
            }

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Rank among the replicas, their number; shard of the model's gradients, their number."""
        return self._backend.rank(), self._backend.size(), self._shard.index, self._shard.count

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """In place of what there was. All ranks load, each its own (for another number: `geocomm.merge_feedback`).

        Whatever the sites and buckets now are: a value that another rank has to encode from now on goes to it with the
        next step's gradients. The guard's codec is taken over if the hook was made for the same codec.
        Raises InvalidArgumentError for a state of another rank, number of ranks or model.
        """
        check_state(state, self.place, self._numel_of)
        self._settle()
        self._residuals.load(state["residual"])
        self._momenta.load(state["momentum"])
        self._scales.forget()
        self._undoable = False
        self._steps = state["steps"]
        self._fallback = state["fallback"] if state["configured"] == self._settings.schedule[-1][1] else None
        self._rows.clear()
        if self._guard is not None:
            self._guard.forget()
        self._publish()

    def is_exact(self, name: str) -> bool:
        """Whether the parameter always goes exactly."""
        return name in self._exact_names

    def reduce(
        self, index: int, buffer: torch.Tensor, layout: Layout | None, *, average: bool = True
    ) -> torch.futures.Future[torch.Tensor]:
        """The mean (or sum) of `buffer` over the ranks, in place: flat, dense, of the bucket `index`.

        layout: parameters in the buffer; None: not the usual ones, so it goes exactly and the bucket's values wait.
        On a GPU everything is enqueued at once, behind the current stream; waiting for the future blocks a stream.
        """
        self._order.device = buffer.device
        with self._order:
            return self._enqueue(index, buffer, layout, average)

    def _enqueue(
        self, index: int, buffer: torch.Tensor, layout: Layout | None, average: bool
    ) -> torch.futures.Future[torch.Tensor]:
        reduction = _Reduction(index, self._backend.size() if average else 1)
        self._step.append(reduction)
        if layout is None:
            reduction.usual = False
            reduction.works.append(self._reduce(buffer, _EXACT, average))
            self._rows.setdefault(index, {})
            return self._when_done(reduction, [buffer], lambda: None)
        codec = self._step_codec
        velocity = None
        if self._settings.momentum:
            everything = tuple(part._replace(exact=False) for part in layout)
            before, velocity = self._momenta.take(index, everything, (0, buffer.numel()), buffer.device)
            torch.mul(before, self._settings.momentum, out=velocity).add_(buffer)
            buffer.copy_(velocity)
        span = self._backend.encoded_range(buffer.numel(), buffer.dtype)
        residuals = self._residuals.take(index, layout, span, buffer.device)
        for start, values in self._residuals.leftovers(index):
            buffer[start : start + values.numel()].add_(values, alpha=self._settings.decay)

        # Those slices are zero in what is compressed.
        exact = [] if codec == _EXACT else [buffer[s.offset : s.offset + s.numel] for s in layout if s.exact]
        if all(part.exact for part in layout):
            codec, exact = _EXACT, []
        gathered = torch.cat(exact) if exact else None
        for part in exact:
            part.zero_()
        # float16 has no room for what a small scale makes of a large value.
        adapts = self._settings.adaptive and buffer.dtype != torch.float16 and not codec.startswith("topk")
        scale = self._scales.scale_of(index, layout, span, buffer.device) if adapts else None
        if codec == _EXACT:
            scale = None
        if scale is not None and scale.numel() > 0:
            reduction.scaled = buffer.numel() / scale.numel()
        reduction.works.append(self._reduce(buffer, codec, average, *residuals, scale))
        if gathered is not None:
            reduction.works.append(self._reduce(gathered, _EXACT, average))
        self._rows[index] = (
            {
                "index": index,
                "parameters": [one.name for one in layout if not one.exact],
                "elements": residuals[0].numel(),
            }
            if codec != _EXACT
            else {}
        )

        def finish() -> None:
            if adapts:
                self._observe(reduction, buffer)
            if velocity is not None and codec.startswith("topk"):
                keep_for_stream([velocity])
                velocity.masked_fill_(buffer != 0, 0)  # the exact slices are still zero here
            if gathered is not None:
                parts = gathered.split([part.numel() for part in exact])
                for part, values in zip(exact, parts, strict=True):
                    part.copy_(values)

        return self._when_done(reduction, [buffer] if gathered is None else [buffer, gathered], finish)

    def _when_done(
        self, reduction: _Reduction, tensors: Sequence[torch.Tensor], finish: Callable[[], None]
    ) -> torch.futures.Future[torch.Tensor]:
        """The first of `tensors`, which the works reduce, one each, after them and `finish`."""

        def end(_: torch.futures.Future[Any]) -> torch.Tensor:
            for work in reduction.works:
                work.get_future().wait()  # the last of them is done; raises what went wrong
            keep_for_stream(tensors)  # futures of GPUs have a stream of their own for this
            reduction.squares = [
                LaterValue(self._square(work, tensor)) for work, tensor in zip(reduction.works, tensors, strict=True)
            ]
            finish()
            return tensors[0]

        reduction.done = reduction.works[-1].get_future().then(end)
        return reduction.done

    def _square(self, work: FeedbackWork, result: torch.Tensor) -> torch.Tensor:
        if self._backend.spans_sites and not is_read_later(result):
            return torch.tensor(work.feedback()["result_square"], dtype=torch.float64)
        return square_of(result)

    def _observe(self, reduction: _Reduction, result: torch.Tensor) -> None:
        """Show the scales a result whose elements are finite, and those of what is reduced with it."""
        if is_read_later(result):
            finite = torch.stack([square.tensor for square in reduction.squares]).isfinite().all()
            self._scales.observe(reduction.bucket, result, finite)
            reduction.observed = True
        elif reduction.finite:
            self._scales.observe(reduction.bucket, result)

    def begin_step(self) -> None:
        """Before the first `reduce` of a step."""
        with self._order:
            self._begin_step()

    def _begin_step(self) -> None:
        self._settle()
        if self._guard is not None and (reason := self._guard.verdict(self._backend.size(), self._shard.group)):
            self._fall_back(reason)
        self._residuals.begin_step()
        self._momenta.begin_step()
        self._rows.clear()
        self._step_codec = self.codec
        self._undoable = False
        self._steps += 1

    def end_step(self) -> None:
        """After the last `reduce` of a step, which need not be done. Of a model in shards: when all are done."""
        self._step_whole = True
        if self._guard is not None:
            self._guard.exchange_if_due(self._group)
        if self._shard.group is not None:
            self._settle()

    def _settle(self) -> None:
        """End the last step, once: keep what it did to the residuals if it was whole and all values are finite, which
        all ranks see alike."""
        step, self._step = self._step, []
        whole, self._step_whole = self._step_whole, False
        if not step:
            return
        good = [reduction.end() and reduction.finite for reduction in step]
        for reduction, kept in zip(step, good, strict=True):
            if reduction.observed and not kept:
                self._scales.forget_last(reduction.bucket)
        if whole and self._agree(all(good)):
            self._undoable = True
            self._record(step)
        else:
            self._undo()
        self._publish()

    def _agree(self, good: bool) -> bool:
        """Replicas see the same results, shards do not: whether the step was good in all of them."""
        if self._shard.group is None:
            return good
        verdict = torch.tensor([int(good)], device=device_of_group(self._shard.group))
        dist.all_reduce(verdict, dist.ReduceOp.MIN, group=self._shard.group)
        return bool(verdict.item())

    def _undo(self) -> None:
        self._residuals.undo_step()
        self._momenta.undo_step()
        self._undoable = False
        self._skipped_steps += 1

    def _record(self, step: Iterable[_Reduction]) -> None:
        residual_square = input_square = gradient_square = 0.0
        not_finite = 0
        compressed = False
        for reduction in step:
            row = self._rows[reduction.bucket]
            if not row or not reduction.usual:
                continue
            compressed = True
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
        if compressed and self._guard is not None and self._backend.spans_sites:
            self._guard.add(residual_square, input_square, gradient_square, not_finite)

    def _fall_back(self, reason: str) -> None:
        before = self.codec
        finer = finer_codec(before)
        if finer is None:
            return
        self._fallback = finer
        self._fallbacks.append({"step": self._steps, "codec": finer, "reason": reason})
        assert self._guard is not None
        self._guard.forget()
        if self._backend.rank() == self._shard.index == 0:
            native().log(
                LOG_LEVELS["warning"],
                f"gradients: codec {before} to {finer} from step {self._steps} on, on all ranks: {reason}",
            )

    def _reduce(
        self,
        tensor: torch.Tensor,
        codec: str,
        average: bool,
        residual: torch.Tensor | None = None,
        next_residual: torch.Tensor | None = None,
        scale: torch.Tensor | None = None,
    ) -> FeedbackWork:
        decay = self._settings.decay
        return self._backend.all_reduce_compressed(tensor, codec, residual, average, decay, next_residual, scale)

    def _publish(self) -> None:
        self._published: dict[str, Any] = {
            "kind": self._kind,
            "steps": self._steps,
            "codec": self.codec,
            "skipped_steps": self._skipped_steps,
            "fallbacks": [dict(one) for one in self._fallbacks],
            "buckets": [dict(row) for _, row in sorted(self._rows.items()) if row],
        }


def _is_exact(name: str, parameter: torch.nn.Parameter, settings: HookSettings) -> bool:
    small = parameter.dim() <= 1 or parameter.numel() < settings.exact_below
    return small or any(re.search(pattern, name) for pattern in settings.exact)
