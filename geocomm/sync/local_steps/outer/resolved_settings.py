"""The numbers of a run with local steps: what the user gave, and what follows where that is "auto" or the preset's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.errors import InvalidArgumentError
from geocomm.core.link_table import Links
from geocomm.group.planning.local_estimate import LEAST_EVERY, ReduceChoice, chosen_reduce
from geocomm.group.planning.regions import regions_text
from geocomm.sync.local_steps.model.fragments import Tensor, automatic_count
from geocomm.sync.local_steps.outer.anchor import CARRY, Merge
from geocomm.sync.local_steps.outer.averaging import is_mean
from geocomm.sync.local_steps.outer.rounds import Coding
from geocomm.sync.local_steps.outer.schedule import Schedule
from geocomm.sync.local_steps.settings.local_settings import LocalSettings, Nesterov

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

    def outer(self, sites: int | None) -> Nesterov:
        """The outer optimizer with this many sites; None: their number changes."""
        return self.outer_of_two if sites is not None and sites <= 2 else self.outer_of_more


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
class ResolvedSettings:
    """Settings of which nothing is open any more."""

    given: LocalSettings
    schedule: Schedule
    """The schedule of the first rounds."""
    renews: bool
    """Whether `every` follows the line while the run goes."""
    outer: Nesterov
    coding: Coding
    merge: Merge
    exact_below: int
    choice: ReduceChoice | None = None
    """Why `reduce` is what it is, where "auto" chose it by the links."""

    @classmethod
    def of(
        cls, given: LocalSettings, tensors: Sequence[Tensor], sites: int | None, links: Links | None = None
    ) -> ResolvedSettings:
        """Fill in what follows from the model, the number of sites, and the links between them, which all sites know
        alike; None: they are not known. Raises InvalidArgumentError."""
        base = PRESETS[given.preset]
        every = LEAST_EVERY if given.every == "auto" else given.every
        overlap = given.overlap
        if overlap == "auto":
            overlap = min(_DETERMINISTIC_OVERLAP if given.deterministic else _LEAST_OVERLAP, every)
        fragments = automatic_count(tensors) if given.fragments == "auto" else given.fragments
        decay = base.decay if given.decay == "auto" else given.decay
        codec = codec_with_small_blocks(given.codec or base.codec)
        if given.reduce == "aggregator" and codec_spec(codec).needs_feedback:
            raise InvalidArgumentError(
                f"local steps: reduce='aggregator' compresses the average by the codec of the deltas, and {codec} "
                "needs error feedback, which an average has not; take a codec such as int4, or leave out reduce"
            )
        regions = () if links is None else links.by_region()
        choice = None
        if given.reduce == "auto" and links is not None and len(links.sites) > 1:
            choice = chosen_reduce(sum(tensor.numel for tensor in tensors), links, codec)
        reduce = given.reduce
        if reduce == "auto":
            reduce = "all" if choice is None else choice.reduce
        if regions and reduce == "aggregator" and not is_mean(given.averaging):
            raise InvalidArgumentError(
                "local steps: averaging='radial' cannot be made of the averages of regions; leave averaging out, or "
                "[regions] of the links file"
            )
        return cls(
            given=given,
            schedule=Schedule(every=every, fragments=fragments, overlap=overlap),
            # Times differ between equal runs, so `deterministic` keeps the first value.
            renews=given.every == "auto" and not given.deterministic,
            outer=base.outer(sites) if given.outer is None else given.outer,
            coding=Coding(codec, decay, given.averaging, reduce, regions),
            merge=base.merge if given.merge == "auto" else given.merge,
            exact_below=given.resolved_exact_below([tensor.shape for tensor in tensors]),
            choice=choice,
        )

    def terms(self) -> dict[str, str]:
        """Every setting as text, by the name of its field: what all sites must have alike."""
        numbers = asdict(self.schedule) | asdict(self.coding)
        numbers |= {"outer": self.outer, "merge": self.merge, "exact_below": self.exact_below}
        shared = LocalSettings.model_fields.keys() - {"preset"}  # the other fields have what a preset stands for
        terms = {name: str(numbers.get(name, value)) for name, value in self.given if name in shared}
        if self.coding.reduce == "all":
            del terms["reduce"]  # what earlier versions wrote has none
        elif self.coding.regions:
            terms["regions"] = regions_text(self.coding.regions)
        if self.renews:
            terms["every"] = f"auto, {self.schedule.every} at first"
        return terms


def codec_with_small_blocks(codec: str) -> str:
    """The codec; four bits get blocks of 128 elements unless the string says otherwise: deltas of layers differ."""
    spec = codec_spec(codec)
    if spec.family == "int4" and "block" not in spec.given:
        return str(spec.with_setting("block", str(_INT4_BLOCK)))
    return codec


def require_elastic(settings: ResolvedSettings) -> None:
    """Raise InvalidArgumentError for one of them."""
    if settings.given.deterministic:
        raise InvalidArgumentError(
            "local steps: deterministic=True has no meaning in an elastic run, whose rounds list the sites that were "
            "there; replaying its journal is deterministic"
        )
    if settings.given.reduce == "auto":
        raise InvalidArgumentError(
            "local steps: reduce='auto' chooses by the links of fixed sites, and those of an elastic run come and go; "
            "set reduce='aggregator' from four sites on, or leave it out"
        )
    if settings.schedule.overlap == 0:
        raise InvalidArgumentError(
            "local steps: overlap=0 has steps wait for other sites, which no step of an elastic run does; leave "
            "overlap out, or set it to 1"
        )
