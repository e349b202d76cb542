"""The configuration of a training run: pydantic models with a description on every field.

`config_text` reads it from YAML and `--set`, prints it, and renders the list in `docs/reference/run-config.md`.
"""

# pyright: reportArgumentType=false
# It does not see defaults that Field() gets by position, and takes the sections for classes with required arguments.
from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from geocomm.codecs.codec_settings import Codec
from geocomm.core.bad_input import did_you_mean
from geocomm.core.settings import Fraction, NonNegative, Positive, Section
from geocomm.data.corpus.data_settings import DataConfig
from geocomm.sync.gradients.hook_settings import HookSettings
from geocomm.sync.local_steps.settings.local_settings import LocalSettings, Steps
from geocomm.train.export.export_record import Dtype
from geocomm.train.models.model_presets import ModelConfig
from geocomm.train.runs.run_tracking import LoggingConfig


class GradientSyncConfig(HookSettings):
    """Gradients are averaged over all ranks in every step."""

    if not TYPE_CHECKING:  # the document that it is part of says where a wrong value stands
        __init__ = Section.__init__

    mode: Literal["gradients"] = "gradients"
    """gradients: averaged over all ranks in every step. local: local steps."""
    codec: Codec | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Preset or codec, with error feedback, for the gradients between sites: balanced, small, int4, …. With ZeRO 1 and
    2 the shards are then inside each site. Default: DeepSpeed reduces, with distributed.codec."""


class LocalSyncConfig(LocalSettings):
    """Each site trains by itself, and the sites average their weights now and then."""

    if not TYPE_CHECKING:
        __init__ = Section.__init__

    mode: Literal["local"] = "local"
    """gradients: averaged over all ranks in every step. local: local steps."""
    weights: Literal["steps", "tokens"] = "tokens"
    """What a site's delta counts by: its optimizer steps, or its tokens."""
    joint_steps: Steps = "auto"
    """First steps with gradients averaged over all ranks. auto: schedule.warmup_steps, but 0 with ZeRO
    3, and with ZeRO 1 and 2 at sites of unequal size."""


MODES: dict[str, type[HookSettings | LocalSettings]] = {"gradients": GradientSyncConfig, "local": LocalSyncConfig}


def _of_one_mode(values: Any) -> Any:
    """Say the mode where it goes without saying; refuse what belongs to another one."""
    if not isinstance(values, Mapping):
        return values
    mode = values.get("mode", "gradients")
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; it must be one of {', '.join(MODES)}{did_you_mean(str(mode), MODES)}")
    for other, section in MODES.items():
        if strangers := [
            name for name in values if name in section.model_fields and name not in MODES[mode].model_fields
        ]:
            raise ValueError(
                f"mode {mode} has no {', '.join(map(repr, strangers))}; mode {other} has: remove "
                f"{'these fields' if strangers[1:] else 'the field'}, or set sync.mode={other}"
            )
    return {"mode": mode, **values}


SyncConfig = Annotated[GradientSyncConfig | LocalSyncConfig, Field(discriminator="mode"), BeforeValidator(_of_one_mode)]


# DeepSpeed keys that fields of this file decide.
DRIVER_OWNED_DEEPSPEED_KEYS = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "bf16",
        "fp16",
        "optimizer",
        "scheduler",
        "steps_per_print",
    }
)


class TrainingConfig(Section):
    """Length, batch, precision and ZeRO stage."""

    steps: PositiveInt = Field(100, description="Optimizer steps of the run.")
    micro_batch_size: PositiveInt = Field(
        4, description="Sequences per rank in one forward pass; with sync.mode local, a site may have its own."
    )
    gradient_accumulation_steps: PositiveInt = Field(1, description="Forward passes per optimizer step; likewise.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32",
        description="Arithmetic of forward and backward; bf16 and fp16 keep fp32 master weights. fp16: ZeRO 1 to 3.",
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(0, description="What DeepSpeed ZeRO partitions over the ranks.")
    gradient_clip: NonNegative = Field(1.0, description="Largest global gradient norm; 0 turns clipping off.")
    loss_scale: NonNegative = Field(0.0, description="fp16 only: fixed loss scale; 0 for dynamic scaling.")
    initial_scale_power: Annotated[int, Field(ge=0, le=32)] = Field(
        16, description="fp16 only: dynamic scaling starts at two to this power."
    )


_MUON_MOMENTUM = 0.95


class OptimizerConfig(Section):
    """AdamW or Muon."""

    name: Literal["adamw", "muon"] = Field(
        "adamw",
        description="muon: torch's Muon for the matrices between embeddings and output layer, AdamW for the rest; "
        "needs training.zero_stage 0.",
    )
    learning_rate: Positive = Field(1e-3, description="The peak.")
    beta1: Fraction = Field(0.9, description="Decay of the first moment.")
    beta2: Fraction = Field(0.95, description="Decay of the second moment.")
    epsilon: Positive = Field(1e-8, description="Added to the root of the second moment.")
    weight_decay: NonNegative = Field(0.1, description="Decoupled decay of matrices; vectors are never decayed.")
    momentum: Fraction = Field(_MUON_MOMENTUM, description="muon only: Nesterov momentum of the matrices.")


class ScheduleConfig(Section):
    """Linear warm-up, then cosine decay."""

    warmup_steps: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Steps of linear warm-up; default: a tenth of training.steps, at most 10."
    )
    decay_steps: PositiveInt | None = Field(
        None, description="Step at which the decay ends; default: training.steps. Constant from there."
    )
    final_fraction: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.1, description="Learning rate at the end, as a share of the peak."
    )
    local_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        1.0,
        description="With local steps: the peak as a share of optimizer.learning_rate; from three sites on about 0.6.",
    )


class EvaluationConfig(Section):
    """Loss on held-out text."""

    every_steps: Annotated[int, Field(ge=0)] = Field(0, description="Steps between two evaluations; 0: none.")
    at_end: bool = Field(True, description="Evaluate after the last step.")
    max_sequences: PositiveInt = Field(64, description="Most held-out sequences, over all ranks.")

    def runs(self) -> bool:
        """Whether the run evaluates at all."""
        return self.at_end or self.every_steps > 0


class CheckpointConfig(Section):
    """When checkpoints are written, kept and resumed."""

    every_steps: Annotated[int, Field(ge=0)] = Field(0, description="Steps between two; 0: not by steps.")
    every_minutes: NonNegative = Field(0.0, description="Minutes between two; 0: not by time.")
    at_end: bool = Field(False, description="Save after the last step.")
    keep: PositiveInt = Field(2, description="Newest complete checkpoints kept.")
    resume: Literal["auto", "never", "required"] = Field(
        "auto",
        description="auto: from the newest checkpoint, if any. never: refuse a folder that holds a run. required: "
        "refuse one without a checkpoint.",
    )

    def saves(self) -> bool:
        """Whether the run writes checkpoints at all."""
        return self.at_end or self.every_steps > 0 or self.every_minutes > 0


class ExportConfig(Section):
    """What a complete run leaves in `output_dir`/export."""

    format: Literal["hf", "none"] = Field("hf", description="hf: a Hugging Face folder. none: nothing.")
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="Type of the exported weights. auto: training.precision."
    )


class DistributedConfig(Section):
    """How the ranks talk and where they compute."""

    backend: Literal["geocomm", "gloo", "nccl"] = Field(
        "geocomm", description="torch.distributed backend; gloo and nccl for comparison."
    )
    codec: str | None = Field(
        None, description="geocomm codec for traffic between sites; default: GEOCOMM_CODEC, else none (exact)."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto: CUDA where every rank has a GPU, CPU where none has; a mixture is refused."
    )
    timeout_seconds: Positive = Field(1800.0, description="Limit of one collective operation.")
    startup_timeout_seconds: Positive = Field(1800.0, description="Limit to arrive and prepare data.")


# DeepSpeed keys that change the reduction which sync.codec and local steps replace.
_REDUCTION_KEYS = ("sparse_gradients", "communication_data_type", "prescale_gradients", "gradient_predivide_factor")


class RunConfig(Section):
    """A whole run."""

    output_dir: Path = Field(
        Path("runs/default"),
        description="Folder of the run: config.yaml, metrics.jsonl, events.jsonl, tensorboard/, checkpoints/, export/.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="Seed of initial weights and data order.")
    model: ModelConfig = Field(default_factory=ModelConfig, description="Which model is trained.")
    data: DataConfig = Field(default_factory=DataConfig, description="Text, tokenizer and packing.")
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="Length, batch, precision, ZeRO.")
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig, description="AdamW or Muon.")
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig, description="Learning rate over time.")
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig, description="Loss on held-out text.")
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="Saving and resuming.")
    export: ExportConfig = Field(default_factory=ExportConfig, description="What is left for other programs.")
    logging: LoggingConfig = Field(default_factory=LoggingConfig, description="What is shown and written.")
    distributed: DistributedConfig = Field(default_factory=DistributedConfig, description="How the ranks talk.")
    sync: SyncConfig = Field(default_factory=GradientSyncConfig, description="What crosses between the sites.")
    deepspeed: dict[str, Any] = Field(
        default_factory=dict,
        description="More DeepSpeed configuration, such as {zero_optimization: {reduce_bucket_size: 5000000}}.",
    )

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        owned = sorted(DRIVER_OWNED_DEEPSPEED_KEYS & self.deepspeed.keys())
        if owned:
            raise ValueError(f"deepspeed.{owned[0]} is decided by other fields of this configuration; remove it")
        zero = self.deepspeed.get("zero_optimization", {})
        if isinstance(zero, dict) and "stage" in zero:
            raise ValueError("deepspeed.zero_optimization.stage is decided by training.zero_stage; remove it")
        if self.model.partitioned_init and (self.training.zero_stage != 3 or self.model.path is not None):
            raise ValueError("model.partitioned_init needs training.zero_stage 3 and a preset")
        if self.training.precision == "fp16" and self.training.zero_stage == 0:
            raise ValueError(
                "training.precision fp16 needs training.zero_stage 1 or more: with stage 0 DeepSpeed (0.19) does not "
                "scale the loss, though it divides the gradients by the scale, and nothing is learned"
            )
        if self.optimizer.name == "muon" and self.training.zero_stage:
            raise ValueError(
                f"optimizer.name muon needs training.zero_stage 0, not {self.training.zero_stage}: ZeRO cuts the "
                "matrices that Muon works on. A loop of your own can have Muon under FSDP2 (geocomm.local_steps)"
            )
        if self.optimizer.name != "muon" and self.optimizer.momentum != _MUON_MOMENTUM:
            raise ValueError("optimizer.momentum is for optimizer.name muon; AdamW has optimizer.beta1")
        if self.export.dtype == "fp32" and self.training.precision != "fp32":
            raise ValueError(
                f"export.dtype fp32 needs training.precision fp32, not {self.training.precision}: the float32 weights "
                "are in checkpoints, from which `geocomm export --dtype fp32` takes them"
            )
        if self.sync.mode == "local" or self.reduces_gradients:
            self._require_sync(zero if isinstance(zero, dict) else {})
        decay_steps = self.schedule.decay_steps or self.training.steps
        if self.warmup_steps() >= decay_steps:
            raise ValueError(
                f"schedule.warmup_steps ({self.warmup_steps()}) must be below the step at which the decay ends "
                f"({decay_steps})"
            )
        return self

    def _require_sync(self, zero: dict[str, Any]) -> None:
        what = "sync.mode local" if self.sync.mode == "local" else "sync.codec"
        if self.distributed.backend != "geocomm":
            raise ValueError(f"{what} needs distributed.backend geocomm, not {self.distributed.backend}")
        if self.sync.mode == "local":
            self._require_local(self.sync)
        elif self.training.zero_stage == 3:
            raise ValueError(
                "sync.codec works with training.zero_stage 0, 1 and 2: in stage 3 it is parameters that cross between "
                "sites, in every pass, and they have no error feedback"
            )
        refused = [key for key in _REDUCTION_KEYS if self.deepspeed.get(key)]
        refused += [f"zero_optimization.{key}" for key in ("offload_optimizer", "zenflow") if zero.get(key)]
        if self.deepspeed.get("data_types"):
            refused.append("data_types")
        if refused:
            raise ValueError(f"deepspeed.{refused[0]} does not go together with {what}; remove one of them")

    def _require_local(self, sync: LocalSyncConfig) -> None:
        training = self.training
        if self.model.partitioned_init:
            raise ValueError(
                "sync.mode local does not go together with model.partitioned_init, which cuts parameters over the "
                "ranks of all sites; remove one of them"
            )
        if sync.deterministic and training.precision == "fp16":
            raise ValueError(
                "sync.deterministic does not go together with training.precision fp16: a site that skips a step comes "
                "to the rounds at other steps than the others; use bf16, or remove sync.deterministic"
            )
        if not 0 <= self.joint_steps() < training.steps:
            raise ValueError(
                f"sync.joint_steps is {self.joint_steps()}; it must be from 0 on and below training.steps "
                f"({training.steps})"
            )
        if training.zero_stage == 3 and self.joint_steps() > 0:
            raise ValueError(
                f"sync.joint_steps is {self.joint_steps()}, and with training.zero_stage 3 no gradients are averaged "
                "over all ranks; remove it, or use zero_stage 0, 1 or 2"
            )

    @property
    def reduces_gradients(self) -> bool:
        """Whether geocomm reduces the gradients, with error feedback, and not DeepSpeed."""
        return self.sync.mode == "gradients" and self.sync.codec is not None

    def warmup_steps(self) -> int:
        """Steps of linear warm-up."""
        given = self.schedule.warmup_steps
        return min(10, self.training.steps // 10) if given is None else given

    def learning_rate(self, step: int) -> float:
        """The learning rate of optimizer step `step`, counted from 0: linear warm-up, cosine decay, then constant.

        Step `warmup_steps()` is the first at the peak.
        """
        peak, warmup = self.optimizer.learning_rate, self.warmup_steps()
        if self.sync.mode == "local":
            peak *= self.schedule.local_fraction
        if step < warmup:
            return peak * (step + 1) / (warmup + 1)
        final = self.schedule.final_fraction
        progress = min(1.0, (step - warmup) / ((self.schedule.decay_steps or self.training.steps) - warmup))
        return peak * (final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress)))

    def export_dtype(self) -> Dtype:
        """The type of the exported weights."""
        return self.training.precision if self.export.dtype == "auto" else self.export.dtype

    def joint_steps(self, *, equal_sites: bool = True) -> int:
        """The first steps with local steps, whose gradients are averaged over all ranks.

        equal_sites: whether all sites have as many ranks, without which there are none by default with ZeRO 1 and 2.
        """
        if self.sync.mode != "local":
            return 0
        if self.sync.joint_steps != "auto":
            return self.sync.joint_steps
        stage = self.training.zero_stage
        return self.warmup_steps() if stage == 0 or (stage < 3 and equal_sites) else 0

    def shards_in_sites(self) -> bool:
        """Whether ZeRO's shards are inside each site, and not over all ranks."""
        stage = self.training.zero_stage
        return stage > 0 if self.sync.mode == "local" else self.reduces_gradients and stage in (1, 2)

    def global_batch(self, world_size: int) -> int:
        """Sequences per optimizer step over all ranks."""
        training = self.training
        return training.micro_batch_size * training.gradient_accumulation_steps * world_size
