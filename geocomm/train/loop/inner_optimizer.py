"""The optimizer of a run: AdamW, or Muon for the matrices and AdamW for the rest. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel
from typing_extensions import override

from geocomm.train.loop.train_config import OptimizerConfig

_Groups = list[dict[str, Any]]


def make_optimizer(model: PreTrainedModel, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Make the optimizer with rate 0, which the loop sets before every step."""
    matrices = _hidden_matrices(model) if config.name == "muon" else set[int]()
    muon: list[torch.nn.Parameter] = []
    decayed: list[torch.nn.Parameter] = []
    plain: list[torch.nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            # Under partitioned_init the parameter itself is a flat placeholder; ds_shape is its real shape.
            dimensions = len(getattr(parameter, "ds_shape", parameter.shape))
            others = decayed if dimensions >= 2 else plain
            (muon if id(parameter) in matrices else others).append(parameter)
    groups: _Groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.name == "muon":
        return MuonWithAdamW([{"params": muon, "weight_decay": config.weight_decay}], groups, config)
    return _adamw(groups, config)


class MuonWithAdamW(torch.optim.Optimizer):
    """torch's two optimizers as one, which a DeepSpeed engine can step. They share its groups and its state.

    Muon's updates are scaled to the usual length of AdamW's (`match_rms_adamw`), so one learning rate is for both.
    """

    def __init__(self, matrices: _Groups, others: _Groups, config: OptimizerConfig) -> None:
        """Muon is for `matrices`, AdamW for `others`."""
        muon = torch.optim.Muon(
            [group | {"is_muon": True} for group in matrices],
            lr=0.0,
            momentum=config.momentum,
            adjust_lr_fn="match_rms_adamw",
        )
        adamw = _adamw([group | {"is_muon": False} for group in others], config)
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self._inner: tuple[torch.optim.Optimizer, ...] = (muon, adamw)

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for inner, is_muon in zip(self._inner, (True, False), strict=True):
            # Engines and load_state_dict put others in their place.
            inner.param_groups = [group for group in self.param_groups if group["is_muon"] is is_muon]
            inner.state = self.state
            inner.step()
        return loss


def _adamw(groups: _Groups, config: OptimizerConfig) -> torch.optim.AdamW:
    return torch.optim.AdamW(groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.epsilon)


def _hidden_matrices(model: PreTrainedModel) -> set[int]:
    """The ids of the matrices between the embeddings and the output layer."""
    head: Any = model.get_output_embeddings()
    ends = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    if head is not None:
        ends.add(id(head.weight))
    return {id(one) for one in model.parameters() if one.ndim == 2} - ends
