"""The report of bench_local_gap.py: each method's loss over per-step training, each at its own best learning rate."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench_local_report import LAW, LAW_PER_STEP
from local_rows import LENGTH, SIZES, Recipe, Run

DEFAULT_MOMENTUM = {2: 0.5, 4: 0.8, 8: 0.8, 16: 0.8}
_HEAD = """\
# What local steps cost, by learning rate, batch and number of sites

- 2026-11-27, one NVIDIA H100 80GB HBM3; Python 3.12.3, torch 2.11.0+cu130; TF32 products
- `python benchmarks/bench_local_gap.py`: {count} runs, as rows of one batched model
- {text}; a twentieth of it is held out, 4,096 sequences of that are evaluated
{others}- `--check`: the rows' losses are within 0.04 % of those of geocomm's own simulated sites (two and four,
  275 steps)
- decoders of 135,488 parameters (0.1m) and 664,448 (0.7m), bytes, sequences of 64; AdamW 0.9 / 0.95, weight decay 0.1,
  clipped to 1; 40 steps of warm-up, linear to a tenth; the first 100 steps per-step
- local: H = 30, int4 with error feedback, merge carry after one step, `finish`; outer lr 1, momentum 0.5 with two
  sites, 0.8 with more

**How to read the tables.** Each method has its own best learning rate of those that were tried, by the mean of its
seeds. The gap is the loss over that of per-step training at *its* best rate: equal tokens, the same sequences, the same
first weights. Seeds are paired. Differences below half a point of two seeds say little. The law is arXiv 2503.09799's,
read down to this size; it has no batch.
"""

_OTHERS = """\
- {2} of the runs, those of {0}, on one core of a CPU, Python 3.11, torch 2.13: {1}
"""


@dataclass(frozen=True)
class Method:
    """A run's plan without its learning rate and seed, and its losses by these."""

    run: Run
    losses: dict[float, dict[int, float]]

    @property
    def rate(self) -> float:
        """At which the mean of the seeds is best."""
        return min(self.losses, key=lambda rate: statistics.fmean(self.losses[rate].values()))

    def over(self, other: Method, rate: float | None = None) -> list[float]:
        """In percent, for each seed that both have."""
        own, base = self.losses[rate or self.rate], other.losses[other.rate]
        return [100 * (own[seed] / base[seed] - 1) for seed in sorted(own.keys() & base.keys())]


def write_report(path: Path) -> None:
    """Of the runs in this file of JSON lines, into the Markdown file beside it."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    by_recipe: dict[Recipe, dict[Run, dict[float, dict[int, float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(dict))
    )
    for row in rows:
        run = Run(**row["run"])
        by_recipe[Recipe(**row["recipe"])][replace(run, rate=0, seed=0)][run.rate][run.seed] = row["loss"]
    found = {recipe: [Method(run, losses) for run, losses in methods.items()] for recipe, methods in by_recipe.items()}
    texts = Counter(row["text"] for row in rows)
    (text, _), *others = texts.most_common()
    lines = _HEAD.format(
        count=len(rows),
        text=text,
        others="".join(_OTHERS.format(_recipes_of(rows, one), one, runs) for one, runs in others),
    ).splitlines()
    lines += ["", "## By batch", "", "The defaults.", *_by_batch(found)]
    for recipe, methods in sorted(found.items(), key=lambda item: (item[0].size, item[0].batch, -item[0].steps)):
        lines += _trials(recipe, methods)
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _recipes_of(rows: Sequence[Mapping[str, Any]], text: str) -> str:
    """Of the runs that read this text: tokens of a site and step, and steps."""
    recipes = {(row["recipe"]["batch"] * LENGTH, row["recipe"]["steps"]) for row in rows if row["text"] == text}
    return ", ".join(f"{tokens:,} tokens and {steps} steps" for tokens, steps in sorted(recipes))


def _by_batch(found: dict[Recipe, list[Method]]) -> Iterable[str]:
    yield ""
    columns = ("size", "tokens of a site and step", "steps", "sites", "per-step: best rate", "loss")
    columns += ("local: best rate", "loss", "gap", "each seed", "at the rate of per-step", "law")
    yield "| " + " | ".join(columns) + " |"
    yield "|---|" + "---:|" * 8 + "---|---:|---:|"
    lines = []
    for recipe, methods in sorted(found.items(), key=lambda item: (item[0].size, -item[0].steps, item[0].batch)):
        for sites in sorted({method.run.sites for method in methods}):
            base, local = (_found(methods, run) for run in (_per_step(sites), _default(sites)))
            if base is None or local is None:
                continue
            kept = f"{statistics.fmean(local.over(base, base.rate)):+.2f} %" if base.rate in local.losses else "–"
            lines.append(
                f"| {recipe.size} | {recipe.batch * LENGTH:,} | {recipe.steps} | {sites} | {base.rate:g} | "
                f"{_loss(base)} | {local.rate:g} | {_loss(local)} | {_mean(local.over(base))} | "
                f"{_each(local.over(base))} | {kept} | {_law(recipe.size, sites)} |"
            )
    yield from lines


def _trials(recipe: Recipe, methods: list[Method]) -> Iterable[str]:
    others = [one for one in methods if one.run not in (_per_step(one.run.sites), _default(one.run.sites))]
    if not others:
        return
    yield ""
    joint = "" if recipe.joint_steps == Recipe.joint_steps else f", the first {recipe.joint_steps} per-step"
    title = f"{recipe.size}, {recipe.batch * LENGTH:,} tokens of a site and step, {recipe.steps} steps{joint}"
    yield f"## Trials: {title}"
    yield ""
    if not any(one.run == _per_step(one.run.sites) for one in methods):
        yield "Without per-step training: gaps are over the defaults."
        yield ""
    yield "| sites | what is other than the defaults | best rate | loss | gap | each seed |"
    yield "|---:|---|---:|---:|---:|---|"
    for sites in sorted({method.run.sites for method in methods}):
        per_step = _found(methods, _per_step(sites))
        base = per_step or _found(methods, _default(sites))
        assert base is not None
        here = [one for one in methods if one.run.sites == sites and one is not per_step]
        for one in sorted(here, key=lambda one: statistics.fmean(one.losses[one.rate].values())):
            over = one.over(base)
            yield f"| {sites} | {_name(one.run)} | {one.rate:g} | {_loss(one)} | {_mean(over)} | {_each(over)} |"


def _found(methods: Iterable[Method], run: Run) -> Method | None:
    return next((one for one in methods if one.run == run), None)


def _per_step(sites: int) -> Run:
    return Run(sites, 0, 0)


def _default(sites: int) -> Run:
    return Run(sites, 0, 0, every=30, outer_momentum=DEFAULT_MOMENTUM[sites])


def _name(run: Run) -> str:
    default, parts = _default(run.sites), []
    if not run.every:
        parts.append("per-step")
    elif run.every != default.every:
        parts.append(f"H = {run.every}")
    if run.every and (run.outer_lr, run.outer_momentum) != (default.outer_lr, default.outer_momentum):
        parts.append(f"outer {run.outer_lr:g} / {run.outer_momentum:g}")
    if run.codec != "int4":
        parts.append("float32 deltas")
    if run.averaging == "radial":
        parts.append("radial averages")
    if run.slow_part < 1:
        parts.append(f"quasi-hyperbolic, β {run.beta:g}, {run.slow_part:g} of it")
    if run.averages_moments:
        parts.append("first moments averaged")
    if run.shrinks:
        parts.append("mean shrunk by its noise")
    if run.momentum_ends:
        parts.append("momentum falls over the last fifth")
    if run.pair_every:
        parts.append(f"averages inside of pairs every {run.pair_every}")
    if run.aggregates:
        regions = f", regions of {run.region_sites}" if run.region_sites else ""
        parts.append(f"reduce: aggregator{regions}")
    return ", ".join(parts) or "**defaults**"


def _loss(method: Method) -> str:
    return f"{statistics.fmean(method.losses[method.rate].values()):.4f}"


def _mean(values: list[float]) -> str:
    return f"**{statistics.fmean(values):+.2f} %**"


def _each(values: list[float]) -> str:
    return ", ".join(f"{value:+.2f}" for value in values)


def _law(size: str, sites: int) -> str:
    (own, own_power), (base, base_power), count = LAW[sites], LAW_PER_STEP, SIZES[size].elements
    return f"{100 * (own * count**own_power / (base * count**base_power) - 1):+.1f} %"
