"""One call that compresses DistributedDataParallel's gradients with error feedback."""
# Annotations are evaluated here: DDP compares those of a hook with the classes themselves.

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from geocomm.errors import InvalidArgumentError
from geocomm.gradients.hook_state import HookSettings, HookState, attach_state


def ddp_hook(
    model: DistributedDataParallel,
    codec: str = "balanced",
    *,
    warmup_steps: int = 10,
    exact: Sequence[str] = ("norm",),
    exact_below: int = 4096,
    decay: float = 1.0,
    guard: bool = True,
    guard_steps: int = 50,
) -> HookState:
    """Reduce the gradients of `model` with `codec` between the sites, with error feedback (Seide et al. 2014).

    Registers a communication hook (once per model; all ranks alike, before the first backward) and returns its handle:
    `stats()`, `state_dict()`, `load_state_dict()`, `rescale()`, `undo_step()`. What a codec loses of a gradient is kept
    and added in the next step, by parameter, whatever the buckets; replicas stay bit-identical.

    model: on a process group of the geocomm backend, whose own codec does not matter here. Gradients: float32, float16,
    bfloat16, on the CPU, dense.
    codec: a preset or codec string (docs/codecs.md), those that need error feedback included.
    warmup_steps: that many first steps are exact. exact: regular expressions, searched in the names of parameters that
    always go exactly; so do those of one dimension or fewer than `exact_below` elements.
    decay: of the residual, in each step; 1: nothing is ever lost.
    guard: every `guard_steps` steps, compare the residuals with the gradients (docs/gradients.md has the rule), and
    where they grow go on with the next finer preset, on all ranks in the same step; one log line per change.

    Steps with a gradient that is not finite (GradScaler skips them) or an operation that fails leave the residuals as
    they were. Memory of a rank: two float32 for each element that it encodes, its part of the site's gradients, and a
    third while an operation is under way.
    Raises InvalidArgumentError.
    """
    if warmup_steps < 0:
        raise InvalidArgumentError(f"warmup_steps is {warmup_steps}; it must be 0 or more")
    schedule = ((0, "none"), (warmup_steps, codec)) if warmup_steps else ((0, codec),)
    settings = HookSettings(schedule, tuple(exact), exact_below, decay, guard_steps if guard else None)
    return register(model, settings)


def register(model: DistributedDataParallel, settings: HookSettings) -> HookState:
    """Make the state and give DDP the hook."""
    state = attach_state(model, settings)
    model.register_comm_hook(state, _feedback_hook)
    return state


def _feedback_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return state.run(bucket)
