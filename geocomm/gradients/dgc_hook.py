"""Deep Gradient Compression: top-k with error feedback of gradients that carry their own momentum."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn.parallel import DistributedDataParallel

from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.errors import InvalidArgumentError
from geocomm.gradients.ddp_hook import register
from geocomm.gradients.gradient_hook import GradientHook
from geocomm.gradients.hook_settings import HookSettings

_CHUNK = 4096  # of topk
_FIRST_RATIO = 0.25


def dgc_hook(
    model: DistributedDataParallel,
    ratio: float = 0.01,
    momentum: float = 0.9,
    *,
    warmup_steps: int = 10,
    ramp_steps: int = 100,
    exact: Sequence[str] = ("norm",),
    exact_below: int = 4096,
    guard: bool = True,
    guard_steps: int = 50,
) -> GradientHook:
    """Send the largest `ratio` of the gradients' momentum (Lin et al.: Deep Gradient Compression, ICLR 2018).

    A hook like `ddp_hook`, with its handle and its other arguments, and what the paper adds: *momentum correction* (a
    velocity u = momentum * u + gradient is what is compressed), *momentum factor masking* (u is forgotten where it was
    sent), and *warm-up*: after `warmup_steps` exact ones a quarter is sent, then a quarter of that after each
    `ramp_steps`, down to `ratio`. **The optimizer is SGD without momentum**: the gradients that it gets have it. Other
    than in the paper, a site stands for a worker: its ranks' sum is what is chosen from, in chunks of 4096; u is also
    forgotten where another site sent; gradients are not clipped here.

    ratio: above 0, at most a half; a 4096th at least is sent. Memory of a rank: two float32 per element of the
    gradients, beside those of `ddp_hook`. Raises InvalidArgumentError.
    """
    if not 0 < ratio <= 0.5:
        raise InvalidArgumentError(f"ratio is {ratio}; it must be above 0 and at most 0.5")
    if warmup_steps < 0 or ramp_steps < 1:
        raise InvalidArgumentError("warmup_steps must be 0 or more, ramp_steps 1 or more")
    settings = HookSettings(
        _schedule(ratio, warmup_steps, ramp_steps),
        tuple(exact),
        exact_below,
        1.0,
        guard_steps if guard else None,
        momentum,
    )
    return register(model, settings, "dgc")


def _schedule(ratio: float, warmup_steps: int, ramp_steps: int) -> tuple[tuple[int, str], ...]:
    def codec(share: float) -> str:
        return str(codec_spec("topk").with_setting("k", str(max(1, round(_CHUNK * share)))))

    schedule = [(0, "none")] if warmup_steps else []
    first, share = warmup_steps, _FIRST_RATIO
    while share > ratio:
        schedule.append((first, codec(share)))
        first, share = first + ramp_steps, share / 4
    return (*schedule, (first, codec(ratio)))
