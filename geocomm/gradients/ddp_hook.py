"""One call that compresses DistributedDataParallel's gradients with error feedback."""
# Annotations are evaluated here: DDP compares those of a hook with the classes themselves.

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from geocomm.core.errors import InvalidArgumentError, UnsupportedError
from geocomm.gradients.gradient_hook import GradientHook
from geocomm.gradients.gradient_reducer import GradientReducer
from geocomm.gradients.hook_settings import HookSettings, feedback_settings, require_devices
from geocomm.gradients.named_values import Layout, Slice


def ddp_hook(
    model: DistributedDataParallel,
    codec: str = "balanced",
    *,
    warmup_steps: int = 10,
    exact: Sequence[str] = ("norm",),
    exact_below: int = 4096,
    decay: float = 1.0,
    adaptive: bool = True,
    guard: bool = True,
    guard_steps: int = 50,
) -> GradientHook:
    """Reduce the gradients of `model` with `codec` between the sites, with error feedback (Seide et al. 2014).

    Registers a communication hook (once per model; all ranks alike, before the first backward) and returns its handle:
    `stats()`, `state_dict()`, `load_state_dict()`, `rescale()`, `undo_step()`. What a codec loses of a gradient is kept
    and added in the next step, by parameter, whatever the buckets; replicas stay bit-identical.

    model: on a process group of the geocomm backend, whose own codec does not matter here. Gradients: float32, float16,
    bfloat16, dense, on CPUs or GPUs; on a GPU nothing waits for the host: elements and residuals cross to pinned host
    memory, where the codec works, within the stream (docs/explanation/error-feedback.md).
    codec: a preset or codec string (docs/how-to/choose-a-codec.md), those that need error feedback included.
    warmup_steps: that many first steps are exact. exact: regular expressions, searched in the names of parameters that
    always go exactly; so do those of one dimension or fewer than `exact_below` elements.
    decay: fraction of the residual that each step keeps; 1: all of it.
    adaptive: what is encoded is divided by each element's usual magnitude, a power of two learned from the reduced
    gradients, so that the codec's error does not drown small gradients, which Adam and its kin count as much as large
    ones. It adds two float32 to the memory below. Not with top-k codecs, and not for float16.
    guard: every `guard_steps` steps, compare the residuals with the gradients, and where they grow go on with the next
    finer preset, on all ranks in the same step; one log line per change. The rule: docs/explanation/error-feedback.md.

    Steps with a gradient that is not finite (GradScaler skips them) or an operation that fails leave the residuals as
    they were. Memory of a rank: two float32 for each element that it encodes, its part of the site's gradients.
    Raises InvalidArgumentError.
    """
    settings = feedback_settings(
        codec, warmup_steps, exact, exact_below, decay, guard_steps if guard else None, adaptive=adaptive
    )
    return register(model, settings, "ddp")


class DdpAdapter:
    """Feeds a reducer with the buckets that DDP hands to its hook."""

    def __init__(self, model: DistributedDataParallel, settings: HookSettings, kind: str) -> None:
        named = dict(model.module.named_parameters())
        group: Any = model.process_group  # DDP has one, whatever its type says
        self.reducer = GradientReducer(kind, group, named, settings)
        self._name_of = {id(parameter): name for name, parameter in named.items()}

    def run(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The hook: the mean of the bucket over the ranks, in its buffer."""
        if bucket.index() == 0:
            self.reducer.begin_step()
        buffer = bucket.buffer()
        if buffer.layout != torch.strided:
            raise UnsupportedError("geocomm's DDP hooks do not take sparse gradients; make them dense (sparse=False)")
        done = self.reducer.reduce(bucket.index(), buffer, self._layout_of(bucket))
        if bucket.is_last():
            self.reducer.end_step()
        return done

    def _layout_of(self, bucket: dist.GradBucket) -> Layout:
        base = bucket.buffer().storage_offset()
        slices = []
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            name = self._name_of[id(parameter)]
            offset = int(gradient.storage_offset() - base)
            slices.append(Slice(name, offset, gradient.numel(), self.reducer.is_exact(name)))
        return tuple(slices)


def register(model: DistributedDataParallel, settings: HookSettings, kind: str) -> GradientHook:
    """Give DDP a hook with these settings; returns its handle. Raises InvalidArgumentError."""
    if not isinstance(model, DistributedDataParallel):
        raise InvalidArgumentError(f"a DDP hook takes a DistributedDataParallel model, not {type(model).__name__}")
    require_devices("a DDP hook", (parameter.device for parameter in model.module.parameters()))
    adapter = DdpAdapter(model, settings, kind)
    model.register_comm_hook(adapter, _feedback_hook)
    return GradientHook(adapter.reducer)


def _feedback_hook(adapter: DdpAdapter, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return adapter.run(bucket)
