"""What the elastic demo ends in: a few lines, summary.json and a picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from geocomm.core.units import count_text
from geocomm.elastic.journal.entries import AnyRound
from geocomm.elastic.journal.run_state import RunState
from geocomm.lab.demo.demo_table import INK, PICTURE_STYLE, lateness_text
from geocomm.lab.demo.elastic_run import KILLED, SITE_NAMES, ElasticRun, SeenStep, members

_COLORS = ("#2a6f97", "#2d936c", "#b3541e")
_SMOOTHED_STEPS = 5


def told(run: ElasticRun) -> list[str]:
    """What happened, in sentences."""
    figures = run.figures
    others, compared = figures["others"], figures["anchors_compared"]
    longest, before = others["longest_step_seconds"], others["longest_step_before_seconds"]
    gap, usual_gap = others["longest_gap_seconds"], others["median_gap_seconds"]
    seen = " and ".join(f"{seconds:.1f} s ({site})" for site, seconds in figures["seen_seconds"].items())
    lost = others["rounds_void"] + others["rounds_without_one_of_them"]
    return [
        f"{KILLED} was killed: SIGKILL for all its processes. The others knew after {seen}.",
        f"The others went on: {count_text(others['rounds_without_killed'], 'round')} without it, {lost} lost.",
        f"Their longest step took {longest:.2f} s; before the kill {before:.2f} s, median "
        f"{others['median_step_seconds']:.2f} s.",
        f"The longest time from one round to the next was {gap:.1f} s; median before the kill {usual_gap:.1f} s.",
        f"{KILLED} lost {count_text(figures['uncounted_steps'], 'step')}, which no round had counted yet.",
        f"It was started again {figures['away_seconds']:.0f} s later. It trained after "
        f"{figures['trains_again_seconds']:.1f} s, from step {figures['rejoined_at_step']} on, and counted after "
        f"{figures['counted_again_seconds']:.1f} s.",
        f"Anchors of {' and '.join(compared)}, up to their last: all {sum(compared.values())} equal to those of "
        f"{SITE_NAMES[0]}, bit for bit.",
    ]


def write_elastic_summary(run: ElasticRun, conditions: str, path: Path) -> None:
    """The figures of the lines and of the picture, as JSON."""
    late = {"late_packets": run.wan.late_packets, "max_lateness_seconds": run.wan.max_lateness_s}
    document = {"conditions": conditions, **run.figures, **late}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def draw_elastic(run: ElasticRun, conditions: str, path: Path) -> None:
    """Tokens per second, loss and members over time, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    untyped: Any = pyplot  # matplotlib leaves much of it without types
    with untyped.rc_context(PICTURE_STYLE):
        figure, axes = untyped.subplots(
            3, 1, figsize=(12, 8), height_ratios=(2, 1.6, 1), sharex=True, layout="constrained"
        )
        layout: Any = figure.get_layout_engine()  # the one of layout="constrained"
        layout.set(w_pad=0.12, h_pad=0.1)
        lines = ("geocomm demo --elastic", conditions, lateness_text([run.wan]))
        figure.suptitle("\n".join(filter(None, lines)), fontsize=12, color=INK)
        _draw_tokens(axes[0], run)
        _draw_losses(axes[1], run)
        _draw_members(axes[2], run)
        events = {
            f"{KILLED} is killed": run.killed_at,
            "started again": run.started_at,
            "counts again": run.counted_at,
        }
        for axis in axes:
            for at in events.values():
                axis.axvline(at - run.began_at, color="#999999", linewidth=1, linestyle=(0, (4, 3)), zorder=0)
            axis.set_axisbelow(True)
            axis.grid(axis="y", color="#e5e5e5")
        for name, at in events.items():
            axes[0].annotate(
                name,
                (at - run.began_at, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(4, -2),
                textcoords="offset points",
                va="top",
                color=INK,
                fontsize=10,
            )
        axes[-1].set_xlabel("seconds since the first round")
        axes[-1].set_xlim(left=min(one[0].at for one in run.steps.values()) - run.began_at)
        figure.savefig(path, dpi=150, facecolor="white")
        pyplot.close(figure)


def _lives(run: ElasticRun, site: str) -> list[list[SeenStep]]:
    """The steps of a site, apart for each time that it was started."""
    steps = run.steps[site]
    if site != KILLED:
        return [steps]
    return [[one for one in steps if one.at < run.started_at], [one for one in steps if one.at > run.started_at]]


def smoothed(values: Sequence[float]) -> list[float]:
    """Each value with the mean of the last ones up to it."""
    return [statistics.mean(values[max(0, end - _SMOOTHED_STEPS) : end]) for end in range(1, len(values) + 1)]


def _draw_tokens(axes: Any, run: ElasticRun) -> None:
    for site, color in zip(SITE_NAMES, _COLORS, strict=True):
        times: list[float] = []
        rates: list[float] = []
        for life in _lives(run, site):
            if times:  # nothing between two lives
                times += [run.killed_at, life[0].at - life[0].took_s]
                rates += [0.0, 0.0]
            times += [one.at for one in life]
            rates += smoothed([one.tokens / one.took_s for one in life])
        axes.plot([at - run.began_at for at in times], rates, color=color, linewidth=2, label=site)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.2)
    axes.set_title("Tokens per second of each site", loc="left", color=INK, fontsize=12)
    axes.legend(frameon=False, loc="center", ncols=len(SITE_NAMES), labelcolor=INK)


def _draw_losses(axes: Any, run: ElasticRun) -> None:
    for site, color in zip(SITE_NAMES, _COLORS, strict=True):
        for life in _lives(run, site):
            axes.plot(
                [one.at - run.began_at for one in life],
                smoothed([one.loss for one in life]),
                color=color,
                linewidth=1.5,
            )
    axes.set_title(f"Training loss, mean of {_SMOOTHED_STEPS} steps", loc="left", color=INK, fontsize=12)


def _draw_members(axes: Any, run: ElasticRun) -> None:
    """How many sites are live, by the journal, and a mark for each round at the sites that count in it."""
    state, times, counts = RunState(), list[float](), list[int]()
    for one in run.journal:
        state.apply(one.entry)
        times.append(one.at - run.began_at)
        counts.append(len(state.live))
    axes.step(times, counts, where="post", color=INK, linewidth=2)
    rounds = [(one.at, one.entry) for one in run.journal if isinstance(one.entry, AnyRound)]
    for (row, site), color in zip(enumerate(SITE_NAMES), _COLORS, strict=True):
        counted = [at - run.began_at for at, entry in rounds if site in members(entry)]
        axes.plot(counted, [0.3 + 0.3 * row] * len(counted), color=color, marker="|", linestyle="", markersize=7)
    axes.set_ylim(0, len(SITE_NAMES) + 0.4)
    axes.set_yticks(range(len(SITE_NAMES) + 1))
    axes.set_title(
        "Members, as the journal has them; marks: the rounds in which a site counted",
        loc="left",
        color=INK,
        fontsize=12,
    )
