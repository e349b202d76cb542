"""Deep Gradient Compression: top-k with error feedback of gradients that carry their own momentum."""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel

from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.errors import InvalidArgumentError
from geocomm.sync.gradients.ddp_hook import register
from geocomm.sync.gradients.gradient_hook import GradientHook
from geocomm.sync.gradients.hook_settings import EXACT, HookSettings, ReductionPlan

_CHUNK = 4096  # of topk
_FIRST_RATIO = 0.25


def dgc_hook(
    model: DistributedDataParallel,
    ratio: float = 0.01,
    momentum: float = 0.9,
    settings: HookSettings | None = None,
    *,
    ramp_steps: int = 100,
) -> GradientHook:
    """Send the largest `ratio` of the gradients' momentum (Lin et al.: Deep Gradient Compression, ICLR 2018).

    A hook like `geocomm.ddp_hook`, with what the paper adds: *momentum correction* (a velocity u = momentum * u +
    gradient is what is compressed), *momentum factor masking* (u is forgotten where it was sent), and *warm-up*: after
    the exact steps a quarter is sent, then a quarter of that after each `ramp_steps`, down to `ratio`. **The optimizer
    is SGD without momentum**: the gradients that it gets have it. Other than in the paper, a site stands for a worker:
    its ranks' sum is what is chosen from, in chunks of 4096; u is also forgotten where another site sent; gradients
    are not clipped here.

    Args:
        model: As for `ddp_hook`. A rank takes two float32 per element of the gradients, beside those of `ddp_hook`.
        ratio: What is sent in the end: above 0, at most a half; a 4096th at least is sent.
        momentum: From 0 on and below 1.
        settings: What stays exact, and the guard. Its codec is not used.
        ramp_steps: Steps with each of the larger ratios.

    Returns:
        The handle, as of `ddp_hook`.

    Raises:
        InvalidArgumentError: A number is out of its range, or the model is not of DistributedDataParallel.
    """
    if not 0 < ratio <= 0.5:
        raise InvalidArgumentError(f"ratio is {ratio}; it must be above 0 and at most 0.5")
    if not 0 <= momentum < 1:
        raise InvalidArgumentError(f"momentum is {momentum}; it must be from 0 on and below 1")
    if ramp_steps < 1:
        raise InvalidArgumentError(f"ramp_steps is {ramp_steps}; it must be 1 or more")
    # Top-k goes without the scales that `adaptive` learns.
    given = (HookSettings() if settings is None else settings).model_copy(update={"adaptive": False})
    plan = ReductionPlan(given, _schedule(ratio, given.warmup_steps, ramp_steps), momentum)
    return register(model, plan, "dgc")


def _schedule(ratio: float, warmup_steps: int, ramp_steps: int) -> tuple[tuple[int, str], ...]:
    def codec(share: float) -> str:
        return str(codec_spec("topk").with_setting("k", str(max(1, round(_CHUNK * share)))))

    schedule = [(0, EXACT)] if warmup_steps else []
    first, share = warmup_steps, _FIRST_RATIO
    while share > ratio:
        schedule.append((first, codec(share)))
        first, share = first + ramp_steps, share / 4
    return (*schedule, (first, codec(ratio)))
