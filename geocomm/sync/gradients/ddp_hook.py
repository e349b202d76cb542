"""One call that compresses DistributedDataParallel's gradients with error feedback."""
# Annotations are evaluated here: DDP compares those of a hook with the classes themselves.

from typing import Any, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from geocomm.core.errors import InvalidArgumentError, UnsupportedError
from geocomm.sync.gradients.device_order import require_devices
from geocomm.sync.gradients.gradient_hook import GradientHook
from geocomm.sync.gradients.hook_settings import HookSettings, ReductionPlan
from geocomm.sync.gradients.named_values import Layout, Slice


def ddp_hook(model: DistributedDataParallel, settings: HookSettings | str = "balanced") -> GradientHook:
    """Reduce the gradients of a model between the sites with a codec and error feedback (Seide et al. 2014).

    It registers a communication hook: once per model, at all ranks alike, before the first backward. What a codec
    loses of a gradient is kept and added in the next step, by parameter, whatever the buckets. Replicas stay
    bit-identical. Steps with a gradient that is not finite (GradScaler skips them), or with an operation that fails,
    leave the stored errors as they were. On a GPU nothing waits for the host: elements and stored errors cross to
    pinned host memory, where the codec works, within the stream.

    Args:
        model: On a process group of the geocomm backend, whose own codec does not matter here. Its gradients are
            dense: float32, float16 or bfloat16, on CPUs or on GPUs. A rank takes two more float32 for each element
            that it encodes, which is its part of the site's gradients.
        settings: How they are compressed, or the name of the codec alone.

    Returns:
        The handle: the stored errors, to be saved, rescaled or undone, and counters.

    Raises:
        InvalidArgumentError: The model is not of DistributedDataParallel, or on another backend's group.
        UnsupportedError: The parameters are neither all on CPUs nor all on CUDA devices.

    Example:
        A fifteenth to a quarter of the bytes, as the codec allows:

            model = DistributedDataParallel(torch.nn.Linear(1024, 1024))
            hook = geocomm.ddp_hook(model, "balanced")
    """
    if not isinstance(model, DistributedDataParallel):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError(f"a DDP hook takes a DistributedDataParallel model, not {type(model).__name__}")
    require_devices("a DDP hook", (parameter.device for parameter in _wrapped(model).parameters()))
    adapter = DdpAdapter(model, ReductionPlan.of(HookSettings.of(settings)))
    cast(Any, model).register_comm_hook(adapter, DdpAdapter.run)
    return adapter.hook


class DdpAdapter:
    """Feeds a hook with the buckets that DDP hands to its hook."""

    def __init__(self, model: DistributedDataParallel, plan: ReductionPlan) -> None:
        named = dict(_wrapped(model).named_parameters())
        group: Any = cast(Any, model).process_group  # DDP has one, whatever its type says
        self.hook = GradientHook("ddp", group, named, plan)
        self._name_of = {id(parameter): name for name, parameter in named.items()}
        self._layouts: dict[int, tuple[list[int], Layout]] = {}
        """By bucket: the parameters that are in it, and where."""

    def run(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The hook: the mean of the bucket over the ranks, in its buffer."""
        if bucket.index() == 0:
            self.hook.begin_step()
        buffer = bucket.buffer()
        if buffer.layout != torch.strided:
            raise UnsupportedError("geocomm.ddp_hook does not take sparse gradients; make them dense (sparse=False)")
        done = self.hook.reduce(bucket.index(), buffer, self._layout_of(bucket))
        if bucket.is_last():
            self.hook.end_step()
        return done

    def _layout_of(self, bucket: dist.GradBucket) -> Layout:
        """It changes only where DDP makes its buckets anew, of other parameters or in another order."""
        parameters = [id(parameter) for parameter in bucket.parameters()]
        known, layout = self._layouts.get(bucket.index(), ([], ()))
        if known != parameters:
            names = [self._name_of[parameter] for parameter in parameters]
            base = bucket.buffer().storage_offset()
            layout = tuple(
                Slice(name, int(gradient.storage_offset() - base), gradient.numel(), self.hook.is_exact(name))
                for name, gradient in zip(names, bucket.gradients(), strict=True)
            )
            self._layouts[bucket.index()] = parameters, layout
        return layout


def _wrapped(model: DistributedDataParallel) -> torch.nn.Module:
    return cast(Any, model).module
