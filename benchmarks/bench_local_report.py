"""The report of bench_local.py: every method's loss over the best per-step run of its seed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from geocomm.lab.bench.bench_report import Conditions

Found = Mapping[Any, Mapping[str, Any]]
"""Results by plan (`bench_local.Plan`)."""

TEXTS = {
    "builtin": "the driver's built-in text (465 KB)",
    "stdlib": "sources of Python 3.11's standard library (11 MB)",
}
"""What the models read, by the names of `--text`."""


LAW = {1: (18.363, -0.0961), 2: (18.768, -0.0969), 4: (19.762, -0.0992), 8: (21.051, -0.1018)}
"""Loss = A * parameters ** a of DiLoCo by the number of sites (arXiv 2503.09799), from 35 M parameters on."""
LAW_PER_STEP = (18.129, -0.0953)
PARAMETERS = {"0.4m": 389_520, "2.2m": 2_174_064}
"""By the names of `--size`."""


def write_report(path: Path, rows: Sequence[tuple[Any, Mapping[str, Any]]], conditions: Conditions) -> None:
    """Write the Markdown file, a part for each regime (`Plan.regime`)."""
    loads = [row["load"] for _, row in rows] or [0.0]
    compiled = sum(bool(row.get("compiled")) for _, row in rows)
    lines = [
        "# Loss with local steps over per-step training, at equal tokens",
        "",
        "Sites simulated in one process by `geocomm.sync.local_steps`, with the real handle and the real codecs; no "
        "network, no step times.",
        "The model is the training driver's architecture in a small size, on byte tokens. Runs of one seed begin with "
        "the same weights and read the same batches. The loss is of 512 held-out sequences of 64 tokens, on the anchor "
        "after the last round.",
        "",
        f"- machine: {conditions.machine}{_vectors()}; {conditions.software}; CPU, one thread",
        f"- {len(rows)} runs, in the `.jsonl` file of this name; `benchmarks/bench_local.py` adds what is missing; "
        f"{compiled} of them with `model.compile()` (`--compile`), which changes rounding only",
        f"- other work ran on the machine (load {min(loads):.0f} to {max(loads):.0f}); it does not change losses",
        "- AdamW (betas 0.9, 0.95, weight decay 0.1), gradients clipped to 1; the learning rate falls linearly to a "
        "tenth after the warm-up. Muon: for the matrices between embeddings and output head, AdamW for the rest",
        "- outer optimizer: Nesterov; one fragment unless a row says otherwise",
        "",
        "**How to read the tables.** Seed 1 chose what was tried next; other seeds confirm. "
        "Runs of one table read the same sequences in every step, all sites together. "
        "The gap is the loss over that of the best per-step run of the same seed and the same inner optimizer, in "
        "percent: the mean over the seeds that ran, and each seed's. Where rows have other seeds, compare these and "
        "not the means. A difference of less than one point of one seed is no result.",
        "",
        "The law is the gap that arXiv 2503.09799 (loss = A N^a, by the number of sites) gives for this size. Below "
        "35 M parameters it is extrapolated. Its runs have AdamW inside and neither overlap nor codec.",
    ]
    found = dict(rows)
    for regime in sorted({plan.regime for plan in found}, key=lambda regime: (regime[1] == "builtin", regime)):
        lines += _regime(regime, {plan: row for plan, row in found.items() if plan.regime == regime})
    picture = path.with_suffix(".png")
    _plot(found, picture)
    lines += ["", f"![Loss over per-step training by method]({picture.name})"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def law_gap(size: str, sites: int) -> float | None:
    """In percent, over data-parallel training; None for a number of sites of which the law says nothing."""
    if sites not in LAW:
        return None
    (own, own_power), (base, base_power) = LAW[sites], LAW_PER_STEP
    return 100 * (own * PARAMETERS[size] ** own_power / (base * PARAMETERS[size] ** base_power) - 1)


def _regime(regime: tuple[str, str, int, int], found: Found) -> list[str]:
    size, _, steps, sequences = regime
    warmups = sorted({plan.warmup_steps for plan in found})
    lines = [
        "",
        f"## {_title(regime)}",
        "",
        f"{steps * sequences * 64 / 1e6:.2f} million tokens in all; {_listed(warmups)} steps of warm-up; "
        f"{PARAMETERS[size]:,} parameters.",
        "",
        "| per-step | held-out loss of each seed |",
        "|---|---|",
    ]
    for name, plans in _by_name([plan for plan in found if plan.every is None]).items():
        losses = {plan.seed: found[plan]["loss"] for plan in plans}
        lines.append(f"| {name} | {', '.join(f'{seed}: {loss:.4f}' for seed, loss in losses.items())} |")
    local = _by_name([plan for plan in found if plan.every is not None])
    if not local:
        return lines
    lines += [
        "",
        "| local steps | loss of each seed | gap, mean | gap of each seed | law | rounds | bytes a round |",
        "|---|---|---:|---|---:|---:|---:|",
    ]
    for name, plans in local.items():
        over = {plan.seed: _over_best(plan, found) for plan in plans}
        losses = ", ".join(f"{plan.seed}: {found[plan]['loss']:.4f}" for plan in plans)
        one, gap = found[plans[0]], law_gap(size, plans[0].sites)
        law = "" if gap is None else f"{gap:+.1f} %"
        lines.append(
            f"| {name} | {losses} | {_mean(over.values())} | {_each(over)} | {law} | "
            f"{one['rounds']} | {one['wire_bytes'] / one['rounds']:,.0f} |"
        )
    return lines + _ends({name: [found[plan] for plan in plans] for name, plans in local.items()}, local)


def _ends(rows: Mapping[str, Sequence[Mapping[str, Any]]], local: Mapping[str, Sequence[Any]]) -> list[str]:
    """The last round in three ways, for the runs that have them (`ends`; measured once, in a patched clone)."""
    lines = [
        "",
        "The last round in other ways: the change of the loss, in percent, against a full outer step in the last "
        "round, which begins so many steps after the one before. Mean: the sites' own weights averaged in its place. "
        "Look-back: the step without its look-ahead, anchor + lr x momentum x b. None: no last round.",
        "",
        "| local steps | seed | after 0: mean, look-back | after 1: mean, look-back, none | after 20: the same |",
        "|---|---|---|---|---|",
    ]
    empty = len(lines)
    for name, found in rows.items():
        for plan, row in zip(local[name], found, strict=True):
            if "ends" in row:
                cells = (_end(row["ends"].get(steps)) for steps in ("0", "1", "20"))
                lines.append(f"| {name} | {plan.seed} | {' | '.join(cells)} |")
    return lines if len(lines) > empty else []


def _end(losses: Mapping[str, float] | None) -> str:
    if losses is None:
        return ""
    kinds = [kind for kind in ("mean", "lookback", "no_last_round") if kind in losses]
    return ", ".join(f"{100 * (losses[kind] / losses['now'] - 1):+.2f}" for kind in kinds)


def _vectors() -> str:
    """The widest vectors that this processor has."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    widest = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), "")
    return widest and f" ({widest})"


def _title(regime: tuple[str, str, int, int]) -> str:
    size, text, steps, sequences = regime
    return f"{size} parameters, {TEXTS[text]}, {steps} steps, {sequences} sequences a step"


def _mean(values: Iterable[float]) -> str:
    return f"{statistics.mean(values):+.2f} %"


def _each(over: Mapping[int, float]) -> str:
    return ", ".join(f"{seed}: {value:+.2f}" for seed, value in over.items())


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
    for panel, (regime, methods) in zip(panels, regimes.items(), strict=True):
        for place, plans in enumerate(methods.values()):
            over = [_over_best(plan, found) for plan in plans]
            panel.barh(place, statistics.mean(over), color="#9ecae1")
            panel.plot(over, [place] * len(over), "o", color="#08519c", markersize=4)
        panel.set_yticks(range(len(methods)), methods, fontsize=7)
        panel.invert_yaxis()
        panel.grid(axis="x", alpha=0.3)
        panel.set_title(_title(regime), fontsize=9)
    panels[-1].set_xlabel("held-out loss over per-step training at equal tokens, %")
    figure.savefig(path, dpi=130)


def _by_name(plans: Sequence[Any]) -> dict[str, list[Any]]:
    """The plans of a method by seed; methods by their names."""
    names = sorted({plan.name for plan in plans})
    return {name: sorted((plan for plan in plans if plan.name == name), key=lambda plan: plan.seed) for name in names}


def _over_best(plan: Any, found: Found) -> float:
    """In percent, over the best per-step run of its regime with the same seed and inner optimizer."""
    best = min(
        row["loss"]
        for other, row in found.items()
        if other.every is None and (other.regime, other.seed, other.inner) == (plan.regime, plan.seed, plan.inner)
    )
    return 100 * (found[plan]["loss"] / best - 1)


def _listed(numbers: Sequence[int]) -> str:
    return " or ".join(map(str, numbers))
