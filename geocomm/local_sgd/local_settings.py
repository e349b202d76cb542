"""What a run with local steps is given: presets, and the values that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.bad_input import did_you_mean
from geocomm.core.errors import InvalidArgumentError
from geocomm.local_sgd.averaging import Averaging
from geocomm.local_sgd.fragments import Tensor, automatic_count
from geocomm.local_sgd.merge import CARRY, Merge, check_merge
from geocomm.local_sgd.outer_step import Nesterov
from geocomm.local_sgd.rounds import Coding
from geocomm.local_sgd.schedule import Schedule
from geocomm.planning.local_estimate import LEAST_EVERY

Auto = Literal["auto"]
Weights = Literal["steps", "tokens"]
_LEAST_OVERLAP = 1
"""A result is merged as soon as it is there, but not before the next step: the site trains while it is on the line."""
_DETERMINISTIC_OVERLAP = 5
"""Where a result is always merged after the same step, it should be there by then."""
_INT4_BLOCK = 128


@dataclass(frozen=True)
class Preset:
    """What a kind of training begins with."""

    outer_of_two: Nesterov
    """With two sites."""
    outer_of_more: Nesterov
    """With three or more."""
    codec: str
    decay: float
    merge: Merge

    def outer(self, sites: int) -> Nesterov:
        """The outer optimizer with so many sites."""
        return self.outer_of_two if sites <= 2 else self.outer_of_more


_FINETUNE = Nesterov(lr=0.2, momentum=0.0)
_PLAIN = Nesterov(lr=1.0, momentum=0.0)
PRESETS = {
    # Momentum makes good what averaging takes from a step: the noise in a small batch shortens the steps of Adam.
    # Measured for two and four sites (benchmarks/results/local-quality.md).
    "pretrain": Preset(Nesterov(1.0, 0.5), Nesterov(1.0, 0.8), "int4", 1.0, CARRY),
    "finetune": Preset(_FINETUNE, _FINETUNE, "int4", 1.0, 0.5),
    "loco": Preset(_PLAIN, _PLAIN, "loco", 0.95, 0.5),  # SparseLoCo, arXiv 2508.15706
}


@dataclass(frozen=True)
class LocalSettings:
    """The numbers of a run; `auto` has been resolved."""

    schedule: Schedule
    """Of the first rounds."""
    renews: bool
    """Whether `every` follows the line while the run goes."""
    outer: Nesterov
    coding: Coding
    merge: Merge
    weights: Weights
    deterministic: bool

    @classmethod
    def of(
        cls,
        tensors: Sequence[Tensor],
        *,
        sites: int,
        preset: str,
        every: int | Auto,
        codec: str | None,
        outer: Nesterov | None,
        fragments: int | Auto,
        merge: Merge | Auto,
        overlap: int | Auto,
        decay: float | None,
        averaging: Averaging,
        weights: Weights,
        deterministic: bool,
    ) -> LocalSettings:
        """Check what the user gave and fill in the rest. sites: their number. Raises InvalidArgumentError."""
        if preset not in PRESETS:
            raise InvalidArgumentError(f"there is no preset {preset!r}{did_you_mean(preset, PRESETS)}")
        for name, value, known in (("averaging", averaging, Averaging), ("weights", weights, Weights)):
            if value not in known.__args__:
                raise InvalidArgumentError(f"{name} is {value!r}; it must be one of {', '.join(known.__args__)}")
        base = PRESETS[preset]
        decay = base.decay if decay is None else decay
        if not 0 <= decay <= 1:
            raise InvalidArgumentError(f"decay is {decay}; it must be from 0 to 1")
        if merge == "auto":
            merge = base.merge
        check_merge(merge)
        first_every = LEAST_EVERY if every == "auto" else every
        if overlap == "auto":
            overlap = min(_DETERMINISTIC_OVERLAP if deterministic else _LEAST_OVERLAP, first_every)
        schedule = Schedule(
            every=first_every,
            fragments=automatic_count(tensors) if fragments == "auto" else fragments,
            overlap=overlap,
        )
        coding = Coding(codec_with_small_blocks(base.codec if codec is None else codec), decay, averaging)
        # Times differ between equal runs, so `deterministic` keeps the first value.
        renews = every == "auto" and not deterministic
        return cls(
            schedule, renews, base.outer(sites) if outer is None else outer, coding, merge, weights, deterministic
        )

    def terms(self) -> dict[str, str]:
        """As text, by the names that `geocomm.local_steps` gives them."""
        return {
            "every": f"auto, {self.schedule.every} at first" if self.renews else str(self.schedule.every),
            "fragments": str(self.schedule.fragments),
            "overlap": str(self.schedule.overlap),
            "outer lr": str(self.outer.lr),
            "outer momentum": str(self.outer.momentum),
            "codec": self.coding.codec,
            "decay": str(self.coding.decay),
            "averaging": self.coding.averaging,
            "merge": str(self.merge),
            "weights": self.weights,
            "deterministic": str(self.deterministic),
        }


def codec_with_small_blocks(codec: str) -> str:
    """The codec; four bits get blocks of 128 elements unless the string says otherwise: deltas of layers differ."""
    spec = codec_spec(codec)
    if spec.family == "int4" and "block" not in spec.given:
        return str(spec.with_setting("block", str(_INT4_BLOCK)))
    return codec
