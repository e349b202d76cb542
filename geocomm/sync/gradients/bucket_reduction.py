"""How one bucket of gradients is reduced: what of it is compressed and by which scales, what goes exactly, and what
becomes of losses."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.native import native
from geocomm.core.typed_torch import future_of, split
from geocomm.sync.gradients.device_order import LaterValue, is_read_later, keep_for_stream, square_of
from geocomm.sync.gradients.hook_settings import EXACT, ReductionPlan
from geocomm.sync.gradients.named_values import Layout, NamedValues

if TYPE_CHECKING:
    from geocomm._C import FeedbackWork, ProcessGroupGeocomm


# Scales. Optimizers like Adam divide every element by its root mean square, so that small gradients count as much as
# large ones; a quantizer whose error is alike for all elements of a block drowns the small ones. What the codec gets is
# therefore divided by these scales, and multiplied again.
#
# All ranks that hold an element must have the same scale for it, bit for bit, whatever their processors and their parts
# of the buffer are. So scales come from the reduced gradients, which are equal on all ranks, by operations that are
# rounded once each or exact, and from the whole buffer only by a sum of integers.

_FIRST = 16
"""Steps of a bucket in which every gradient is looked at; afterwards one in EVERY."""
_EVERY = 4
_LEAST_WEIGHT = 0.05
"""The weight of a gradient in the mean square."""
_FLOOR_BITS = 1
"""Smallest scale, above the geometric mean of the whole buffer's magnitudes: where every element has its own, the large
gradients, in which there are more bits, get too few."""
_EXPONENT_BITS = 23
_EXPONENT_MASK = 0x7F800000
_EXPONENT_BIAS = 127
_CPU = torch.device("cpu")


@dataclass
class _ScaleSlot:
    layout: Layout
    span: tuple[int, int]
    seen: int
    mean_square: torch.Tensor
    scale: torch.Tensor


class ElementScales:
    """The scales of a rank's part of each bucket. Not thread-safe. Memory: two float32 for each element held."""

    def __init__(self) -> None:
        self._slots: dict[int, _ScaleSlot] = {}

    def scale_of(
        self, bucket: int, layout: Layout, span: tuple[int, int], device: torch.device = _CPU
    ) -> torch.Tensor | None:
        """float32 on `device`, one for each element of `span`; None until a gradient of this layout was seen."""
        slot = self._slots.get(bucket)
        if slot is None or slot.layout != layout or slot.span != span or slot.scale.device != device:
            empty = torch.zeros(span[1] - span[0], device=device)
            slot = self._slots[bucket] = _ScaleSlot(layout, span, 0, empty, torch.ones_like(empty))
        return slot.scale if slot.seen else None

    def observe(self, bucket: int, reduced: torch.Tensor, finite: torch.Tensor | None = None) -> None:
        """The bucket's gradient after an all-reduce: flat, finite, equal on all ranks, on the device of its scales.

        Does not wait for the device. finite: a bool there, of no dimensions, in place of the caller's word that the
        gradient is finite; where it is not, nothing is learned, and `forget_last` has to follow.
        """
        slot = self._slots[bucket]
        slot.seen += 1
        keep_for_stream([slot.mean_square, slot.scale])
        if slot.seen > _FIRST and slot.seen % _EVERY:
            return
        weight = max(_LEAST_WEIGHT, 1 / slot.seen)
        if finite is None and reduced.device == _CPU:
            native().learn_scales(reduced.float(), slot.span[0], weight, _FLOOR_BITS, slot.mean_square, slot.scale)
        else:
            learn_scales(reduced, slot.span[0], weight, _FLOOR_BITS, slot.mean_square, slot.scale, finite)

    def forget_last(self, bucket: int) -> None:
        """The last gradient that `observe` got was not finite."""
        if bucket in self._slots:
            self._slots[bucket].seen -= 1

    def scale(self, factor: float) -> None:
        """Gradients are `factor` times what they were from now on."""
        for slot in self._slots.values():
            slot.mean_square.mul_(factor * factor)

    def forget(self) -> None:
        """Start anew."""
        self._slots.clear()


def learn_scales(
    values: torch.Tensor,
    first: int,
    weight: float,
    floor_bits: int,
    mean_square: torch.Tensor,
    scale: torch.Tensor,
    finite: torch.Tensor | None = None,
) -> None:
    """What the native function of this name does (element_passes.h), of tensors on any device.

    Bit for bit the same. finite: where it is false, nothing.
    """
    own = values[first : first + mean_square.numel()].float()
    # No fused operations: they would be rounded otherwise where a processor has them.
    learned = mean_square.mul(1 - weight).add_(own.mul(own).mul_(weight))
    mean_square.copy_(_where(finite, learned, mean_square))
    # Half the exponent is the root's.
    bits = mean_square.view(torch.int32).bitwise_right_shift(1)
    bits.add_((_EXPONENT_BIAS << _EXPONENT_BITS) >> 1).bitwise_and_(_EXPONENT_MASK)
    floor = _mean_exponent(values) + floor_bits
    chosen = torch.maximum(bits, floor << _EXPONENT_BITS, out=bits).view(torch.float32)
    scale.copy_(_where(finite, chosen, scale))


def _where(choice: torch.Tensor | None, values: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    return values if choice is None else torch.where(choice, values, others)


def _mean_exponent(values: torch.Tensor) -> torch.Tensor:
    """The mean exponent of what is not zero, biased as in float32; the bias where all are. int32, of no dimensions."""
    exponents = values.float().view(torch.int32).bitwise_right_shift(_EXPONENT_BITS).bitwise_and_(0xFF)
    count = exponents.count_nonzero()
    mean = exponents.sum().div(count.clamp_min(1), rounding_mode="floor")
    return torch.where(count > 0, mean, _EXPONENT_BIAS).to(torch.int32)


@dataclass
class BucketReduction:
    """A bucket under way in this step."""

    bucket: int
    factor: int
    """What makes the sum over the ranks of the result."""
    works: list[FeedbackWork] = field(default_factory=list["FeedbackWork"])
    done: torch.futures.Future[torch.Tensor] | None = None
    squares: list[LaterValue] = field(default_factory=list[LaterValue])
    """The squared L2 norm of each work's result; none where one failed."""
    scaled: float = 0.0
    """Elements for each one that this rank encoded over a scale; 0: none."""
    observed: bool = False
    """Whether the scales were shown its result, which may turn out not to be finite."""
    row: dict[str, Any] = field(default_factory=dict[str, Any])
    """What `stats()` shows of it; empty where nothing was compressed."""

    def end(self) -> bool:
        """Block the host until the reduction has ended, one way or the other; returns whether it succeeded."""
        if self.done is not None:
            with contextlib.suppress(Exception):
                self.done.wait()  # on a GPU: it blocks the current stream
        ended = [work.succeeded() for work in self.works]
        return all(ended) and bool(self.squares)

    @property
    def finite(self) -> bool:
        """Whether all elements of the result are. Blocks the host until it is known."""
        return all(math.isfinite(square.read()) for square in self.squares)


class BucketReducer:
    """Enqueues the reduction of buckets, and holds what goes on from step to step by parameter."""

    def __init__(self, backend: ProcessGroupGeocomm, plan: ReductionPlan) -> None:
        self._backend = backend
        self._settings = plan.settings
        self.residuals = NamedValues()
        self.scales = ElementScales()

    def begin_step(self) -> None:
        """Keep what the last step did to residuals: it counts."""
        self.residuals.begin_step()

    def undo_step(self) -> None:
        """Give residuals the values that they had before the step."""
        self.residuals.undo_step()

    def rescale(self, factor: float) -> None:
        """Multiply all that is in the unit of the gradients."""
        self.residuals.scale(factor)
        self.scales.scale(factor)

    def reduce(
        self, reduction: BucketReduction, buffer: torch.Tensor, layout: Layout | None, codec: str, *, average: bool
    ) -> torch.futures.Future[torch.Tensor]:
        """Enqueue all of one bucket's reduction, in place, and note in `reduction` what is under way.

        layout: parameters in the buffer; None: not the usual ones, so it goes exactly and the bucket's values wait.
        """
        if layout is None:
            reduction.works.append(self._all_reduce(buffer, EXACT, average))
            return self._when_done(reduction, [buffer], lambda: None)
        if all(part.exact for part in layout):
            codec = EXACT
        span = self._backend.encoded_range(buffer.numel(), buffer.dtype)
        residuals = self.residuals.take(reduction.bucket, layout, span, buffer.device)
        for start, values in self.residuals.leftovers(reduction.bucket):
            buffer[start : start + values.numel()].add_(values, alpha=self._settings.decay)
        exact = _ExactSlices(buffer, layout) if codec != EXACT else None
        is_sparse = codec_spec(codec).family in ("topk", "loco")
        # float16 has no room for what a small scale makes of a large value.
        adapts = self._settings.adaptive and buffer.dtype != torch.float16 and not is_sparse
        scale = self.scales.scale_of(reduction.bucket, layout, span, buffer.device) if adapts else None
        if codec == EXACT:
            scale = None
        if scale is not None and scale.numel() > 0:
            reduction.scaled = buffer.numel() / scale.numel()
        reduction.works.append(self._all_reduce(buffer, codec, average, *residuals, scale))
        tensors = [buffer]
        if exact is not None and exact.gathered is not None:
            reduction.works.append(self._all_reduce(exact.gathered, EXACT, average))
            tensors.append(exact.gathered)
        if codec != EXACT:
            compressed = [part.name for part in layout if not part.exact]
            reduction.row = {
                "index": reduction.bucket,
                "parameters": compressed,
                "elements": residuals[0].numel(),
            }

        def finish() -> None:
            if adapts:
                self._observe(reduction, buffer)
            if exact is not None:
                exact.put_back()

        return self._when_done(reduction, tensors, finish)

    def _when_done(
        self, reduction: BucketReduction, tensors: Sequence[torch.Tensor], finish: Callable[[], None]
    ) -> torch.futures.Future[torch.Tensor]:
        """The first of `tensors`, which the works reduce, one each, after them and `finish`."""

        def end(_: torch.futures.Future[Any]) -> torch.Tensor:
            for work in reduction.works:
                future_of(work).wait()  # the last of them is done; raises what went wrong
            keep_for_stream(tensors)  # futures of GPUs have a stream of their own for this
            reduction.squares = [
                LaterValue(self._square(work, tensor)) for work, tensor in zip(reduction.works, tensors, strict=True)
            ]
            finish()
            return tensors[0]

        reduction.done = future_of(reduction.works[-1]).then(end)
        return reduction.done

    def _square(self, work: FeedbackWork, result: torch.Tensor) -> torch.Tensor:
        if self._backend.spans_sites and not is_read_later(result):
            return torch.tensor(work.feedback()["result_square"], dtype=torch.float64)
        return square_of(result)

    def _observe(self, reduction: BucketReduction, result: torch.Tensor) -> None:
        """Show the scales a result whose elements are finite, and those of what is reduced with it."""
        if is_read_later(result):
            finite = torch.stack([square.tensor for square in reduction.squares]).isfinite().all()
            self.scales.observe(reduction.bucket, result, finite)
            reduction.observed = True
        elif reduction.finite:
            self.scales.observe(reduction.bucket, result)

    def _all_reduce(
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


class _ExactSlices:
    """The slices of a buffer that go exactly: gathered in a tensor of their own, and zero in what is compressed."""

    def __init__(self, buffer: torch.Tensor, layout: Layout) -> None:
        self._parts = [buffer[part.offset : part.offset + part.numel] for part in layout if part.exact]
        self.gathered = torch.cat(self._parts) if self._parts else None
        for part in self._parts:
            part.zero_()

    def put_back(self) -> None:
        """Copy what was gathered, reduced by now, to where it was."""
        if self.gathered is None:
            return
        parts = split(self.gathered, [part.numel() for part in self._parts])
        for part, values in zip(self._parts, parts, strict=True):
            part.copy_(values)
