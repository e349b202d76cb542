"""The report of bench_local.py: every method's loss over its per-step run, by seed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from geocomm.bench.bench_report import Conditions

_TITLES = {
    "merge": "Merge of the anchor",
    "codec": "Four bits",
    "int8": "Eight bits",
    "every": "Local steps between rounds (H)",
    "sites": "Four sites",
    "alone": "One site alone",
    "fragments": "Fragments",
    "joint": "Per-step at first",
    "outer": "Outer learning rate and momentum",
    "rate": "Inner learning rate",
}


class Run(Protocol):
    """What the report reads of bench_local's plans."""

    size: str
    seed: int
    steps: int
    every: int | None

    @property
    def name(self) -> str: ...
    def per_step(self) -> Run: ...


Rows = Sequence[tuple[Any, Mapping[str, Any]]]


def write_report(
    path: Path,
    rows: Rows,
    parts_of: Callable[[Any], Mapping[str, Sequence[Any]]],
    sizes: Iterable[str],
    conditions: Conditions,
) -> None:
    """Write the Markdown file; what was not run has no row and is listed at the end."""
    loads = [row["load"] for _, row in rows]
    lines = [
        "# Loss with local steps over per-step training, at equal tokens",
        "",
        "Sites simulated in one process by `geocomm.local_sgd`, with the real handle and the real codecs; no network, "
        "no step times.",
        "The model is the training driver's architecture in a small size, on byte tokens of the built-in corpus. Runs "
        "of one seed begin with the same weights and read the same batches. The loss is of 512 held-out sequences of "
        "64 tokens, on the anchor after the last round.",
        "",
        f"- machine: {conditions.machine}; {conditions.software}; CPU, one thread",
        "- 4 sequences of 64 tokens for each site and step; AdamW (betas 0.9, 0.95, weight decay 0.1), gradients "
        "clipped to 1, learning rate 2e-3 unless a row says otherwise: 40 steps of warm-up, then linear to a tenth",
        "- outer optimizer: Nesterov, lr 0.6, momentum 0.9, unless a row says otherwise; one fragment unless it says "
        "otherwise",
        f"- {len(rows)} runs, in the `.jsonl` file of this name; `benchmarks/bench_local.py` adds what is missing",
        f"- other work ran on the machine (load {min(loads):.0f} to {max(loads):.0f}); it does not change losses"
        if loads
        else "- no runs",
        "",
        "Every number is the loss over that of the same seed's per-step run, in percent: the mean over the seeds that "
        "ran, and each seed's. Where rows have other seeds, compare these and not the means. The runs are short: they "
        "rank methods, and say little of what longer training ends at.",
    ]
    found = dict(rows)
    for size, steps in sorted({(plan.size, plan.steps) for plan in found}):
        here = [plan for plan in found if (plan.size, plan.steps) == (size, steps)]
        base = next(plan for plan in here if plan.every is None)
        lines += ["", f"## {size} parameters, {steps} steps", "", *_baselines(here, found)]
        for part in parts_of(_template(base)):
            lines += _table(part, here, found, parts_of)
    lines += ["", "## Not run", "", *_missing(found, parts_of, sizes)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _template(plan: Any, seed: int | None = None) -> Any:
    """The plan that parts are made from."""
    return type(plan)(plan.size, plan.seed if seed is None else seed, plan.steps)


def _baselines(plans: Sequence[Any], found: Mapping[Any, Mapping[str, Any]]) -> list[str]:
    lines = ["| per-step | held-out loss of each seed |", "|---|---|"]
    names = dict.fromkeys(plan.name for plan in plans if plan.every is None)
    for name in names:
        losses = [found[plan]["loss"] for plan in _by_seed(plans) if plan.name == name]
        lines.append(f"| {name} | {', '.join(f'{loss:.4f}' for loss in losses)} |")
    return lines


def _by_seed(plans: Sequence[Any]) -> list[Any]:
    return sorted(plans, key=lambda plan: plan.seed)


def _table(
    part: str,
    plans: Sequence[Any],
    found: Mapping[Any, Mapping[str, Any]],
    parts_of: Callable[[Any], Mapping[str, Sequence[Any]]],
) -> list[str]:
    rows: dict[str, list[tuple[int, float, Mapping[str, Any]]]] = {}
    for seed in sorted({plan.seed for plan in plans}):
        for plan in parts_of(_template(plans[0], seed))[part]:
            if plan.every is not None and plan in found and plan.per_step() in found:
                over = 100 * (found[plan]["loss"] / found[plan.per_step()]["loss"] - 1)
                rows.setdefault(plan.name, []).append((seed, over, found[plan]))
    if rows.keys() <= {_template(plans[0]).name}:
        return []
    lines = [
        "",
        f"### {_TITLES[part]}",
        "",
        "| method | mean | each seed | rounds | bytes a site codes, a round |",
    ]
    lines.append("|---|---:|---|---:|---:|")
    for name, runs in rows.items():
        mean = statistics.mean(over for _, over, _ in runs)
        each = ", ".join(f"{seed}: {over:+.2f}" for seed, over, _ in runs)
        rounds, wire = runs[0][2]["rounds"], runs[0][2]["wire_bytes"]
        lines.append(f"| {name} | {mean:+.2f} % | {each} | {rounds} | {wire / rounds:,.0f} |")
    return lines


def _missing(
    found: Mapping[Any, Mapping[str, Any]], parts_of: Callable[[Any], Mapping[str, Sequence[Any]]], sizes: Iterable[str]
) -> list[str]:
    lines = []
    for size, steps in sorted({(plan.size, plan.steps) for plan in found}):
        plans = [plan for plan in found if (plan.size, plan.steps) == (size, steps)]
        names = [plan.name for _, part in parts_of(_template(plans[0])).items() for plan in part]
        ran = {plan.name for plan in plans}
        missing = [name for name in dict.fromkeys(names) if name not in ran]
        lines += [f"- {size}, {steps} steps: {name}" for name in missing]
    return [
        *lines,
        *(f"- {size}" for size in sizes if size not in {plan.size for plan in found}),
        "- H=100, which needs 3000 steps for 30 rounds",
        "- 10 M parameters; more seeds; per-step with a lossy codec; torchft's DiLoCo; an inner rate tuned for "
        "each method",
    ]
