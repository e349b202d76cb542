"""DeepSpeed engines over the ranks of a site, and what they compute with one rank and torch alone; ranks run these."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from support.local_models import adamw, batch, make_model

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LOSS_SCALE = 4096.0
"""In fp16: gradients then have all their bits, and halves of them too."""


def make_engine(
    stage: int,
    precision: str,
    *,
    alone: bool = False,
    spoil: str = "",
    freeze: str = "",
    flat: bool = False,
    **config: Any,
) -> Any:
    """An engine over the ranks of this rank's site; collective.

    alone: as DeepSpeed makes it without an mpu. spoil, freeze: parameters to change a little and to freeze before.
    flat: with the optimizer that DeepSpeed puts around its FusedAdam, which would have to be compiled.
    """
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops.adam import FusedAdam
    from deepspeed.utils import groups

    from geocomm.integrations.deepspeed import SiteParallel
    from geocomm.train.loop.shm_operator import load_operator

    load_operator(print)
    accelerator: Any = get_accelerator()
    accelerator.is_fp16_supported = lambda: True  # torch computes it on any CPU
    groups.mpu = None  # that of the engine before
    model = make_model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.view(-1)[-1].mul_(1.25 if name == spoil else 1)
            parameter.requires_grad_(name != freeze)
    settings = {
        "train_micro_batch_size_per_gpu": 4,
        # Some parameters are whole on every rank, others are not.
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 30},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1 << 60,
        "gradient_clipping": 0.0,
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {"enabled": precision == "fp16", "loss_scale": LOSS_SCALE},
    }
    deepspeed.runtime.engine.FusedAdam = torch.optim.AdamW if flat else FusedAdam
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=adamw(model),
        config=settings | config,
        dist_init_required=False,
        mpu=None if alone else SiteParallel(),
    )
    return engine


def train_engine(engine: Any, site: str, first: int, last: int) -> None:
    """Micro-batches [first, last)."""
    for step in range(first, last):
        inputs, targets = batch(site, step)
        engine.backward(nn.functional.cross_entropy(engine(inputs).float(), targets))
        engine.step()


def engine_values(engine: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The masters (the weights, where there are none) and the weights, whole; collective over the ranks of the site."""
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param

    masters, weights = [], []
    optimizer, parameters = engine.optimizer, list(engine.module.parameters())
    copies: dict[int, torch.Tensor] = {}
    for own, group in zip(getattr(optimizer, "fp16_groups", ()), getattr(optimizer, "fp32_groups", ()), strict=False):
        copies |= {id(parameter): one for parameter, one in zip(own, group, strict=True)}
    for flat in getattr(optimizer, "fp32_groups_flat", ()):
        parts = flat.split([parameter.numel() for parameter in parameters])
        copies |= {id(parameter): one for parameter, one in zip(parameters, parts, strict=True)}
    for parameter in parameters:
        with deepspeed.zero.GatheredParameters([parameter]):
            weights.append(parameter.detach().clone().reshape(-1))
        master = copies[id(parameter)] if copies else safe_get_full_fp32_param(parameter)
        masters.append(weights[-1] if master is None else master.detach().reshape(-1))
    return torch.cat(masters), torch.cat(weights)


def whole_weights(engine: Any) -> dict[str, torch.Tensor]:
    """The weights by name, whole; collective over the ranks of the site."""
    import deepspeed

    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        return {name: one.detach().clone() for name, one in engine.module.named_parameters()}


class Reference:
    """What an engine of one rank computes: float32 masters, weights of 16 bits made from them for each step."""

    def __init__(self, stage: int, precision: str) -> None:
        self._dtype = DTYPES[precision]
        self._unscale = 1 / LOSS_SCALE if precision == "fp16" else 1.0
        # DeepSpeed 0.19.8 divides gradients by the scale without ZeRO too, but does not multiply the loss by it.
        self._scale = 1 / self._unscale if stage else 1.0
        self.model = make_model()
        for parameter in self.model.parameters():
            parameter.data = parameter.data.to(self._dtype).float()
        self._weights = self._rounded()
        self.optimizer = adamw(self.model)
        if stage == 0 and precision != "fp32":  # DeepSpeed allocates the moments so, and decays masters but not weights
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self.optimizer.step()

    def _rounded(self) -> dict[str, torch.Tensor]:
        weights = {name: one.detach().to(self._dtype) for name, one in self.model.named_parameters()}
        return {name: weight.requires_grad_() for name, weight in weights.items()}

    def train(self, site: str, first: int, last: int) -> None:
        for step in range(first, last):
            inputs, targets = batch(site, step)
            weights = self._weights if step == 0 else self._rounded()
            output = functional_call(self.model, weights, inputs)
            (nn.functional.cross_entropy(output.float(), targets) * self._scale).backward()
            for name, parameter in self.model.named_parameters():
                gradient = weights[name].grad
                assert gradient is not None
                parameter.grad = gradient.float() * self._unscale
            self.optimizer.step()
