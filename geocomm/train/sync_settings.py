"""The part of a run's configuration that says what crosses between the sites while training."""

# pyright: reportArgumentType=false
# It does not see defaults that Field() gets by position.

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PlainValidator, PositiveInt

from geocomm.core.config_section import Section

if TYPE_CHECKING:
    from geocomm.gradients.hook_settings import HookSettings
    from geocomm.local_sgd.outer_step import Nesterov


def _number_or(*words: str, whole: bool) -> PlainValidator:
    """Lets the words pass, and numbers; their limits are those of `geocomm.local_steps`."""

    def check(value: Any) -> Any:
        if value in words or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        if isinstance(value, float) and not whole:
            return value
        named = ", ".join(f"'{word}'" for word in words)
        raise ValueError(f"must be {named} or a {'whole ' if whole else ''}number (got {value!r})")

    return PlainValidator(check)


WholeOrAuto = Annotated[int | Literal["auto"], _number_or("auto", whole=True)]
NumberOrAuto = Annotated[float | Literal["auto"], _number_or("auto", whole=False)]
MergeOrAuto = Annotated[float | Literal["auto", "carry"], _number_or("auto", "carry", whole=False)]

_OF_MODE = {
    "gradients": ("warmup_steps", "adaptive", "guard", "guard_steps"),
    "local": (
        "preset",
        "every",
        "fragments",
        "outer_lr",
        "outer_momentum",
        "merge",
        "overlap",
        "deterministic",
        "joint_steps",
    ),
}
"""Fields that one mode alone has."""


class SyncConfig(Section):
    """What crosses between the sites while training, and how."""

    mode: Literal["gradients", "local"] = Field(
        "gradients",
        description="gradients: averaged over all ranks in every step. local: each site trains by itself, and the "
        "sites average their weights now and then (local steps).",
    )
    codec: str | None = Field(
        None,
        description="Preset or codec, with error feedback: balanced, small, int4, …. Mode gradients: of the gradients "
        "between sites; with ZeRO 1 and 2 the shards are then inside each site, and parameters never cross. Default: "
        "DeepSpeed reduces, with distributed.codec. Mode local: of the sites' deltas; default: the preset's.",
    )
    exact: tuple[str, ...] = Field(
        ("norm",), description="Regular expressions; parameters in whose names one is found always go exactly."
    )
    exact_below: Annotated[int, Field(ge=0)] = Field(
        4096, description="Parameters of fewer elements, or of one dimension, go exactly too."
    )
    decay: NumberOrAuto = Field(
        "auto",
        description="Fraction of the stored error that is kept in each step or round, 0 to 1; 1 keeps all of it. auto: "
        "1, in mode local the preset's.",
    )
    warmup_steps: Annotated[int, Field(ge=0)] = Field(
        10, description="Mode gradients: first steps whose gradients go exactly."
    )
    adaptive: bool = Field(
        True,
        description="Mode gradients: divide what is encoded by each element's usual magnitude. Learned anew after a "
        "resume, which then is not bit for bit.",
    )
    guard: bool = Field(
        True, description="Mode gradients: change to a finer preset when the stored error grows too large."
    )
    guard_steps: PositiveInt = Field(50, description="Mode gradients: steps between two looks of the guard.")
    preset: Literal["pretrain", "finetune", "loco"] = Field(
        "pretrain",
        description="Mode local: outer optimizer, codec and merge. pretrain: lr 1.0, momentum 0.5 (two sites) or 0.8 "
        "(more), int4, carry. finetune: lr 0.2, no momentum, int4, 0.5. loco: lr 1, no momentum, top-k of 64 in 4096, "
        "0.5.",
    )
    every: WholeOrAuto = Field(
        "auto",
        description="Mode local: optimizer steps between two rounds of a fragment. auto: 30, and up to 300 where the "
        "line is slow; it follows the line, but not with deterministic.",
    )
    fragments: WholeOrAuto = Field(
        "auto",
        description="Mode local: parts of the model that take turns. auto: of 4 MiB at least, 24 at most.",
    )
    outer_lr: NumberOrAuto = Field(
        "auto", description="Mode local: learning rate of the outer optimizer. auto: the preset's."
    )
    outer_momentum: NumberOrAuto = Field(
        "auto", description="Mode local: momentum of the outer optimizer. auto: the preset's."
    )
    merge: MergeOrAuto = Field(
        "auto",
        description="Mode local: carry: a result that arrives takes over the steps that the site took meanwhile. 0 to "
        "below 1: the weight of the site's own weights. auto: the preset's.",
    )
    overlap: WholeOrAuto = Field(
        "auto",
        description="Mode local: optimizer steps from a round's beginning to its merge, at least. auto: 1, so a result "
        "is merged as soon as it is there; with deterministic 5. 0: steps wait for the result.",
    )
    deterministic: bool = Field(
        False,
        description="Mode local: a late result makes the step wait, and equal runs have equal bits. false: the site "
        "trains on.",
    )
    joint_steps: WholeOrAuto = Field(
        "auto",
        description="Mode local: first steps with gradients averaged over all ranks. auto: schedule.warmup_steps, but "
        "0 with ZeRO 3, and with ZeRO 1 and 2 at sites of unequal size, where there can be none.",
    )

    @property
    def is_local(self) -> bool:
        """Whether the sites train with local steps."""
        return self.mode == "local"

    @property
    def reduces_gradients(self) -> bool:
        """Whether geocomm reduces the gradients, with error feedback, and not DeepSpeed."""
        return self.mode == "gradients" and self.codec is not None

    def field_of_other_mode(self) -> str | None:
        """A field that is set to something and means nothing in this mode."""
        others = [name for mode, names in _OF_MODE.items() if mode != self.mode for name in names]
        fields = type(self).model_fields
        return next((name for name in others if getattr(self, name) != fields[name].default), None)

    def hook_settings(self) -> HookSettings:
        """The settings of what reduces the gradients; imports torch. InvalidArgumentError: impossible or no codec."""
        from geocomm.core.errors import InvalidArgumentError
        from geocomm.gradients.hook_settings import feedback_settings

        if self.codec is None:
            raise InvalidArgumentError("sync.codec is not set: nothing but DeepSpeed reduces the gradients")
        return feedback_settings(
            self.codec,
            self.warmup_steps,
            self.exact,
            self.exact_below,
            1.0 if self.decay == "auto" else self.decay,
            self.guard_steps if self.guard else None,
            adaptive=self.adaptive,
        )

    def local_arguments(self, sites: int) -> dict[str, Any]:
        """What `geocomm.local_steps` is given with so many sites; imports torch. Raises InvalidArgumentError."""
        return {
            "preset": self.preset,
            "every": self.every,
            "codec": self.codec,
            "outer": self._outer(sites),
            "fragments": self.fragments,
            "merge": self.merge,
            "overlap": self.overlap,
            "decay": None if self.decay == "auto" else self.decay,
            "averaging": "auto",
            # A site's delta counts by its tokens: sites may have different numbers of ranks.
            "weights": "tokens",
            "deterministic": self.deterministic,
        }

    def _outer(self, sites: int) -> Nesterov:
        from geocomm.local_sgd.local_settings import PRESETS
        from geocomm.local_sgd.outer_step import Nesterov

        base = PRESETS[self.preset].outer(sites)
        return Nesterov(
            base.lr if self.outer_lr == "auto" else self.outer_lr,
            base.momentum if self.outer_momentum == "auto" else self.outer_momentum,
        )
