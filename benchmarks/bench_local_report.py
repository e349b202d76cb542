"""The report of bench_local.py: every method's loss over the best per-step run of its seed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from geocomm.bench.bench_report import Conditions

Found = Mapping[Any, Mapping[str, Any]]
"""Results by plan (`bench_local.Plan`)."""

TEXTS = {
    "builtin": "the driver's built-in text (465 KB)",
    "stdlib": "sources of Python 3.11's standard library (11 MB)",
}
"""What the models read, by the names of `--text`."""


def write_report(path: Path, rows: Sequence[tuple[Any, Mapping[str, Any]]], conditions: Conditions) -> None:
    """Write the Markdown file, a part for each regime (`Plan.regime`)."""
    loads = [row["load"] for _, row in rows] or [0.0]
    lines = [
        "# Loss with local steps over per-step training, at equal tokens",
        "",
        "Sites simulated in one process by `geocomm.local_sgd`, with the real handle and the real codecs; no network, "
        "no step times.",
        "The model is the training driver's architecture in a small size, on byte tokens. Runs of one seed begin with "
        "the same weights and read the same batches. The loss is of 512 held-out sequences of 64 tokens, on the anchor "
        "after the last round.",
        "",
        f"- machine: {conditions.machine}; {conditions.software}; CPU, one thread",
        "- AdamW (betas 0.9, 0.95, weight decay 0.1), gradients clipped to 1, learning rate 2e-3 unless a row says "
        "otherwise, falling linearly to a tenth after the warm-up",
        "- outer optimizer: Nesterov, lr 0.6, momentum 0.9, unless a row says otherwise; one fragment unless it says "
        "otherwise",
        f"- {len(rows)} runs, in the `.jsonl` file of this name; `benchmarks/bench_local.py` adds what is missing",
        f"- other work ran on the machine (load {min(loads):.0f} to {max(loads):.0f}); it does not change losses",
        "",
        "Every number is the loss over that of the best per-step run of the same seed and number of sites, in percent: "
        "the mean over the seeds that ran, and each seed's. Where rows have other seeds, compare these and not the "
        "means.",
    ]
    found = dict(rows)
    for regime in sorted({plan.regime for plan in found}):
        lines += _regime(regime, {plan: row for plan, row in found.items() if plan.regime == regime})
    picture = path.with_suffix(".png")
    _plot(found, picture)
    lines += ["", f"![Loss over per-step training by method]({picture.name})"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _regime(regime: tuple[str, str, int, int], found: Found) -> list[str]:
    size, text, steps, batch = regime
    warmups = sorted({plan.warmup_steps for plan in found})
    lines = [
        "",
        f"## {size} parameters, {TEXTS[text]}, {steps} steps, {batch} sequences for each site and step",
        "",
        f"{steps * batch * 64 / 1e6:.2f} million tokens at each site; {_listed(warmups)} steps of warm-up.",
        "",
        "| per-step | held-out loss of each seed |",
        "|---|---|",
    ]
    for name, plans in _by_name([plan for plan in found if plan.every is None]).items():
        losses = ", ".join(f"{plan.seed}: {found[plan]['loss']:.4f}" for plan in plans)
        lines.append(f"| {name} | {losses} |")
    local = _by_name([plan for plan in found if plan.every is not None])
    if not local:
        return lines
    lines += [
        "",
        "| local steps | mean | each seed | rounds | bytes a site codes, a round |",
        "|---|---:|---|---:|---:|",
    ]
    for name, plans in local.items():
        over = {plan.seed: _over_best(plan, found) for plan in plans}
        each = ", ".join(f"{seed}: {value:+.2f}" for seed, value in over.items())
        one = found[plans[0]]
        mean = statistics.mean(over.values())
        lines.append(
            f"| {name} | {mean:+.2f} % | {each} | {one['rounds']} | {one['wire_bytes'] / one['rounds']:,.0f} |"
        )
    return lines


def _plot(found: Found, path: Path) -> None:
    """A panel for each regime: a bar for the mean of every method, and a dot for each seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    regimes = {
        regime: _by_name([plan for plan in found if plan.every is not None and plan.regime == regime])
        for regime in sorted({plan.regime for plan in found})
    }
    regimes = {regime: methods for regime, methods in regimes.items() if methods}
    heights = [len(methods) + 1 for methods in regimes.values()]
    figure = Figure(figsize=(11, 0.32 * sum(heights) + 1), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(regimes), 1, height_ratios=heights, squeeze=False)[:, 0]
    for panel, ((size, text, steps, batch), methods) in zip(panels, regimes.items(), strict=True):
        for place, plans in enumerate(methods.values()):
            over = [_over_best(plan, found) for plan in plans]
            panel.barh(place, statistics.mean(over), color="#9ecae1")
            panel.plot(over, [place] * len(over), "o", color="#08519c", markersize=4)
        panel.set_yticks(range(len(methods)), methods, fontsize=7)
        panel.invert_yaxis()
        panel.grid(axis="x", alpha=0.3)
        panel.set_title(f"{size} parameters, {TEXTS[text]}, {steps} steps of {batch} sequences a site", fontsize=9)
    panels[-1].set_xlabel("held-out loss over per-step training at equal tokens, %")
    figure.savefig(path, dpi=130)


def _by_name(plans: Sequence[Any]) -> dict[str, list[Any]]:
    """The plans of a method by seed; methods by their names."""
    names = sorted({plan.name for plan in plans})
    return {name: sorted((plan for plan in plans if plan.name == name), key=lambda plan: plan.seed) for name in names}


def _over_best(plan: Any, found: Found) -> float:
    """In percent, over the best per-step run of its regime with the same seed and sites."""
    best = min(
        row["loss"]
        for other, row in found.items()
        if other.every is None and (other.regime, other.seed, other.sites) == (plan.regime, plan.seed, plan.sites)
    )
    return 100 * (found[plan]["loss"] / best - 1)


def _listed(numbers: Sequence[int]) -> str:
    return " or ".join(map(str, numbers))
