"""The DeepSpeed engine of a run, and its optimizer: AdamW, or Muon for the matrices and AdamW for the rest. Imports
torch and deepspeed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from transformers import PreTrainedConfig, PreTrainedModel
from typing_extensions import override

from geocomm.core.bad_input import BadInput
from geocomm.group.backend.sites import sites
from geocomm.integrations.deepspeed import SiteParallel
from geocomm.train.loop.gradient_sync import GradientSync, SiteShards
from geocomm.train.loop.local_sync import LocalSync, share_weights
from geocomm.train.loop.train_config import OptimizerConfig, RunConfig
from geocomm.train.models.model_factory import build_model, build_partitioned_model

_NEVER = 1 << 62


def deepspeed_config(config: RunConfig) -> dict[str, Any]:
    """The driver's DeepSpeed configuration with the user's `deepspeed` section merged in."""
    training = config.training
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": training.micro_batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "gradient_clipping": training.gradient_clip,
        "zero_optimization": {"stage": training.zero_stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": _NEVER,
        "bf16": {"enabled": training.precision == "bf16"},
        "fp16": {
            "enabled": training.precision == "fp16",
            "loss_scale": training.loss_scale,
            "initial_scale_power": training.initial_scale_power,
        },
    }
    _merge(settings, config.deepspeed)
    return settings


def _merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)


def create_model(config: RunConfig, hf_config: PreTrainedConfig) -> PreTrainedModel:
    """The model for `create_engine`. All ranks call it inside the process group; BadInput may be one rank's alone."""
    accelerator: Any = get_accelerator()
    precision = config.training.precision
    if precision == "fp16" and not accelerator.is_fp16_supported():
        raise BadInput(f"training.precision fp16 is not supported on {accelerator.device_name()}; use bf16 or fp32")
    if config.model.partitioned_init:
        return build_partitioned_model(config.model, hf_config, config.seed, deepspeed_config(config))
    return build_model(config.model, hf_config, config.seed)


@dataclass(frozen=True)
class TrainedModel:
    """A model in its DeepSpeed engine, what reduces its gradients, if not the engine, and its local steps, if any."""

    engine: deepspeed.DeepSpeedEngine
    sync: GradientSync | None
    local: LocalSync | None


def create_engine(config: RunConfig, model: PreTrainedModel, *, elastic: bool = False) -> TrainedModel:
    """Make the optimizer and the DeepSpeed engine around `model`. Collective.

    elastic: the ranks are a site of an elastic run, whose local steps the caller begins.
    """
    own_sites = sites() if config.sync.mode == "local" else None
    shards = SiteShards() if own_sites is None and config.shards_in_sites() else None
    joint_steps = 0
    if own_sites is not None and not elastic:
        joint_steps = config.joint_steps(equal_sites=own_sites.have_equal_sizes)
    if own_sites is not None and not joint_steps:
        share_weights(model)  # a seed may give other last bits on other hardware; joint steps share at their end
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=make_optimizer(model, config.optimizer),
        config=deepspeed_config(config),
        dist_init_required=False,
        mpu=shards if own_sites is None else SiteParallel(),
    )
    _forget_initial_step(engine)
    sync = local = None
    if config.sync.mode == "gradients" and config.sync.codec is not None:
        sync = GradientSync(engine, config.sync, shards)
    elif config.sync.mode == "local" and own_sites is not None:
        tokens = config.global_batch(1) * config.data.sequence_length
        local = LocalSync(engine, config.sync, own_sites, joint_steps=joint_steps, tokens_per_rank=tokens)
    return TrainedModel(engine, sync, local)


def _forget_initial_step(engine: deepspeed.DeepSpeedEngine) -> None:
    """Start Adam's bias correction at zero.

    DeepSpeed's 16-bit optimizer without ZeRO makes one step on zero gradients to allocate the moments, which would
    count: the first real updates would come out a quarter too small.
    """
    inner: Any = getattr(engine.optimizer, "optimizer", engine.optimizer)
    for state in inner.state.values():
        if "step" in state:  # Muon has none, and its momentum is zeros then
            state["step"].zero_()


def set_learning_rate(engine: deepspeed.DeepSpeedEngine, rate: float) -> None:
    """Set the rate of the next optimizer step, for all parameters."""
    optimizer: Any = engine.optimizer
    for group in optimizer.param_groups:
        group["lr"] = rate


def apply_gradients(trained: TrainedModel) -> float | None:
    """Call `engine.step()`, with what `sync` and `local` do around it.

    Returns, at the end of an accumulation, the global gradient norm before clipping, if it is finite.
    """
    engine, sync, local = trained.engine, trained.sync, trained.local
    norm: float | torch.Tensor | None = None
    boundary = engine.is_gradient_accumulation_boundary()
    if boundary and sync is not None:
        sync.before_step()
    if boundary and local is not None:
        local.before_update()
    scale, skipped = loss_scale(engine), engine.skipped_steps
    plain = not (engine.zero_optimization() or engine.fp16_enabled() or engine.bfloat16_enabled())
    if boundary and plain:  # the one case in which DeepSpeed clips without keeping the norm
        module: Any = engine.module
        norm = torch.nn.utils.get_total_norm(p.grad for p in module.parameters() if p.grad is not None)
    engine.step()
    if not boundary:
        return None
    if sync is not None:
        factor = 1.0 if scale is None else (loss_scale(engine) or scale) / scale
        sync.after_step(skipped=engine.skipped_steps > skipped, scale_factor=factor)
    if not plain:
        norm = engine.get_global_grad_norm()
    return None if norm is None else float(norm)


def loss_scale(engine: deepspeed.DeepSpeedEngine) -> float | None:
    """The current loss scale of fp16; None in other precisions."""
    optimizer: Any = engine.optimizer
    return float(optimizer.loss_scale) if engine.fp16_enabled() else None


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
