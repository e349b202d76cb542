"""What a user gives for local steps: the argument of `geocomm.local_steps`, and `sync` of a run's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from geocomm.codecs.codec_settings import Codec, CodecSettings
from geocomm.core.environment import refusal
from geocomm.core.records import MOST_FRAGMENTS
from geocomm.core.settings import number_or

Auto = Literal["auto"]
Count = Annotated[int | Auto, number_or("auto", wanted="a whole number, 1 or more", fits=lambda n: n >= 1, whole=True)]
Fragments = Annotated[
    int | Auto,
    number_or(
        "auto", wanted=f"a whole number from 1 to {MOST_FRAGMENTS}", fits=lambda n: 1 <= n <= MOST_FRAGMENTS, whole=True
    ),
]
Steps = Annotated[int | Auto, number_or("auto", wanted="a whole number, 0 or more", fits=lambda n: n >= 0, whole=True)]
Part = Annotated[float | Auto, number_or("auto", wanted="a number from 0 to 1", fits=lambda n: 0 <= n <= 1)]
Merge = Annotated[
    float | Literal["auto", "carry"],
    number_or("auto", "carry", wanted="a number, from 0 on and below 1", fits=lambda n: 0 <= n < 1),
]
Averaging = Literal["auto", "mean", "radial"]
Reduce = Literal["all", "aggregator"]
ReduceGiven = Reduce | Auto


@dataclass(frozen=True)
class Nesterov:
    """The outer optimizer: SGD with Nesterov momentum on averaged deltas (DiLoCo, arXiv 2311.08105, 2503.09799).

    Raises:
        InvalidArgumentError: `lr` or `momentum` is out of its range.

    Example:
        Less momentum than the preset has, as Muon inside wants it:

            settings = geocomm.LocalSettings(outer=geocomm.Nesterov(lr=1.0, momentum=0.4))
    """

    lr: float
    """Outer learning rate, above 0 and at most 10."""
    momentum: float
    """From 0 on and below 1. 0: plain averaging steps, and no momentum is kept."""

    def __post_init__(self) -> None:
        if not 0 < self.lr <= 10:
            raise refusal(f"the outer lr is {self.lr}; it must be above 0 and at most 10")
        if not 0 <= self.momentum < 1:
            raise refusal(f"the outer momentum is {self.momentum}; it must be from 0 on and below 1")


class LocalSettings(CodecSettings):
    """How sites train with local steps: the settings of `geocomm.local_steps`.

    All sites need equal ones. `preset` chooses what a field at its default stands for.

    Raises:
        InvalidArgumentError: A value is invalid. The message names the field, and what it may be.
        TypeError: There is no field of that name; the message offers the nearest one.

    Example:
        A round every 100 optimizer steps, with a quarter of the bytes:

            settings = geocomm.LocalSettings(every=100, codec="int8")
            handle = geocomm.local_steps(model, optimizer, settings)
    """

    preset: Literal["pretrain", "finetune", "loco"] = "pretrain"
    """What `outer`, `codec`, `decay` and `merge` are by default. pretrain: outer lr 1.0, momentum 0.5 with two sites or
    0.8 with more, codec int4, decay 1, merge carry. finetune: outer lr 0.2 without momentum, int4, decay 1, merge 0.5.
    loco (SparseLoCo, arXiv 2508.15706): outer lr 1 without momentum, codec loco (top-k of 64 in 4096), decay 0.95,
    merge 0.5."""
    every: Count = "auto"
    """Optimizer steps between two rounds of a fragment: H of the papers. auto: during the run the smallest number from
    30 to 300 with which rounds take at most 0.7 of the time; with `deterministic` 30."""
    codec: Codec | None = None
    """Preset or codec string for the sites' deltas, with error feedback; `none` sends float32. int4 has blocks of 128
    unless the string says otherwise. Default: the preset's."""
    outer: Nesterov | None = None
    """The outer optimizer: its lr and momentum. Default: the preset's."""
    fragments: Fragments = "auto"
    """Parts of the model that take turns, 4096 at most. auto: as many as have 4 MiB each, at most 24."""
    merge: Merge = "auto"
    """What a site makes of the steps that it took while a result was on the line. `carry` adds them to the new anchor.
    A number below 1 is the weight of the site's own weights: alpha of the papers. auto: the preset's."""
    overlap: Steps = "auto"
    """Least optimizer steps from a round's beginning to its merge: tau of the papers. auto: 1; with `deterministic` 5.
    0: steps wait for the result, and the site takes over the anchor. At most `every`."""
    decay: Part = "auto"
    """Fraction of the stored error that each round keeps, 0 to 1; 1 keeps all of it. auto: the preset's."""
    averaging: Averaging = "auto"
    """How deltas are averaged. mean; radial: the mean length times the mean direction (Decoupled DiLoCo, arXiv
    2604.21428), which was worse with eight sites. auto: the mean."""
    reduce: ReduceGiven = "all"
    """Where deltas are averaged. all: each site sends its delta to every other one, and all average. aggregator: to one
    site, which averages, compresses the average by the same codec once more, and sends it to all. Sites take turns over
    the rounds, so each sends and receives less than two deltas a round, however many sites there are. Not with topk
    and loco. auto: with fixed sites what takes less time by the job's links, or less time times dollars where the links
    file has [prices]; an aggregator has to save a tenth. The log says which, and `geocomm plan` before that."""
    weights: Literal["steps", "tokens"] = "steps"
    """What a site's delta counts by: its optimizer steps, or its tokens (`LocalSteps.count_tokens`)."""
    buffers: Literal["refuse", "local"] = "refuse"
    """Buffers that change in training, such as BatchNorm's statistics. refuse: an error. local: each site keeps its
    own."""
    deterministic: bool = False
    """false: the site trains on while a result is late. true: the step waits, and equal runs have equal bits."""
