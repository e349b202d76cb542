"""What the demo shows: a live table on a terminal or plain lines elsewhere; in the end a table, summary.json and a
picture."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from geocomm.core.console import table_of
from geocomm.core.units import count_text, rate_text
from geocomm.lab.demo.demo_run import DemoProgress, DemoResult, Variant
from geocomm.lab.emulator.emulated_links import EmulatedLink
from geocomm.lab.emulator.emulated_wan import LATENESS_LIMIT_S, WanReport

_PLAIN_EVERY_S = 10.0
_STYLES = {"waiting": "dim", "starting": "yellow", "training": "cyan", "done": "green"}


class DemoView:
    """Shows the progress of all variants. A context manager; one thread."""

    def __init__(self, variants: Sequence[Variant], steps: int, conditions: str, console: Console) -> None:
        """`conditions`: one line over everything."""
        self._progress = {variant.name: DemoProgress() for variant in variants}
        self._steps = steps
        self._conditions = conditions
        self._console = console
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._said: dict[str, tuple[str, int, float]] = {}

    def __enter__(self) -> Self:
        if self._live is None:
            self._console.print(self._conditions, soft_wrap=True)
        else:
            self._live.__enter__()
            self._live.update(self._table())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def update(self, variant: Variant, progress: DemoProgress) -> None:
        """Show the newest numbers of a variant."""
        self._progress[variant.name] = progress
        if self._live is not None:
            self._live.update(self._table())
        else:
            self._say(variant.name, progress)

    def _say(self, name: str, progress: DemoProgress) -> None:
        """A line at each change of state, and now and then while it trains."""
        state, step, when = self._said.get(name, ("", -1, 0.0))
        moved = progress.step != step and time.monotonic() - when >= _PLAIN_EVERY_S
        if progress.state == state and not moved:
            return
        self._said[name] = (progress.state, progress.step, time.monotonic())
        numbers = ""
        if progress.loss is not None and progress.step_s is not None:
            numbers = f", loss {progress.loss:.4f}, {progress.step_s:.2f} s/step"
        line = f"{name}: {progress.state}, step {progress.step}/{self._steps}{numbers}"
        line += f", {progress.wan_bytes / 1e6:.0f} MB sent, {progress.elapsed_s:.0f} s"
        self._console.print(line, soft_wrap=True)

    def _table(self) -> Group:
        table = Table(expand=False, box=None, padding=(0, 1, 0, 0))
        for heading in ("run", "", "", "step", "loss", "s/step", "tokens/s", "MB sent", "elapsed"):
            table.add_column(heading, justify="left" if heading in ("run", "") else "right", no_wrap=True)
        for name, progress in self._progress.items():
            table.add_row(
                Text(name, style="bold"),
                Text(progress.state, style=_STYLES[progress.state]),
                ProgressBar(total=self._steps, completed=progress.step, width=10),
                f"{progress.step}/{self._steps}",
                "" if progress.loss is None else f"{progress.loss:.3f}",
                "" if progress.step_s is None else f"{progress.step_s:.2f}",
                "" if progress.tokens_per_s is None else f"{progress.tokens_per_s:,.0f}",
                f"{progress.wan_bytes / 1e6:,.0f}" if progress.wan_bytes else "",
                f"{progress.elapsed_s:.0f} s" if progress.elapsed_s else "",
            )
        return Group(Text(self._conditions, style="bold"), Text(""), table)


_COLORS = ("#b3541e", "#2a6f97", "#2d936c", "#7b4f9e", "#8a7a2d")
INK = "#333333"
PICTURE_STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.edgecolor": "#999999",
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def lateness_note(outcomes: Sequence[DemoResult]) -> str | None:
    """What to say where the machine was too busy to emulate the link in time; None where it was not."""
    return lateness_text([outcome.wan for outcome in outcomes if outcome.wan is not None])


def lateness_text(reports: Sequence[WanReport]) -> str | None:
    """What to say where the emulator was late in one of some runs; None where it was not."""
    if all(report.reliable for report in reports):
        return None
    late = sum(report.late_packets for report in reports)
    packets = sum(link.packets for report in reports for link in report.links)
    worst = max(report.max_lateness_s for report in reports)
    limit = f"{LATENESS_LIMIT_S * 1e3:g} ms"
    counted = f"{late:,} of {packets:,} emulated packets"
    return f"The machine was busy: {counted} came over {limit} late (worst: {worst * 1e3:.0f} ms)"


def over_loopback(outcomes: Sequence[DemoResult]) -> bool:
    """Whether the sites of these runs had loopback between them."""
    return any(outcome.wan is None for outcome in outcomes)


def loopback_note(link: EmulatedLink) -> str:
    """What the figures of runs over loopback are, in one sentence each."""
    line = f"{rate_text(link.rate_bps)} and {2 * link.delay_s * 1e3:g} ms"
    return (
        "Seconds are not a WAN's. Bytes and losses are, but for local steps, whose rounds depend on a step's time. "
        f"Line ≥: what {line} take for a step at least: bytes / rate + half a round trip for each exchange. "
        "A step can compute meanwhile, and TCP takes longer where packets are lost."
    )


def summary_table(outcomes: Sequence[DemoResult]) -> Table:
    """One row per run; the first one is what the others are compared with. Over loopback no speeds: they are none."""
    steps = len(outcomes[0].losses)
    loopback = over_loopback(outcomes)
    losses = (f"loss at\nstep {steps}", "held-out\nloss")
    headings = (
        ("", "s/step\nhere", "MB sent\n/step", "line ≥\ns/step", *losses)
        if loopback
        else ("", "s/step", "speed", "WAN MB\n/step", "tokens\n/s", *losses)
    )
    base = outcomes[0].median_step_s
    rows: list[tuple[str, ...]] = []
    for outcome in outcomes:
        step_s, sent = f"{outcome.median_step_s:.2f}", f"{outcome.wan_bytes_per_step / 1e6:.1f}"
        middle = (
            (sent, f"{outcome.line_s_per_step:.2f}")
            if loopback
            else (f"{base / outcome.median_step_s:.1f} x", sent, f"{outcome.tokens_per_s:,.0f}")
        )
        rows.append(
            (outcome.variant.name, step_s, *middle, f"{outcome.losses[-1]:.4f}", f"{outcome.held_out_loss:.4f}")
        )
    title = "Five ways, over loopback: seconds are not a WAN's" if loopback else "The same training, five ways"
    return table_of(headings, rows, title=title)


def write_summary(outcomes: Sequence[DemoResult], conditions: str, path: Path) -> None:
    """The figures of the table and of the picture, as JSON."""
    document = {"conditions": conditions, "runs": [outcome.to_dict() for outcome in outcomes]}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def draw(outcomes: Sequence[DemoResult], conditions: str, path: Path) -> None:
    """Loss over time, step time and bytes, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    untyped: Any = pyplot  # matplotlib leaves much of it without types
    with untyped.rc_context(PICTURE_STYLE):
        figure, axes = untyped.subplot_mosaic(
            [["loss", "time"], ["loss", "bytes"]], figsize=(12, 6.2), width_ratios=(1.7, 1), layout="constrained"
        )
        layout: Any = figure.get_layout_engine()  # the one of layout="constrained"
        layout.set(w_pad=0.12, h_pad=0.1, hspace=0.06)
        title = f"geocomm demo: {conditions}"
        figure.suptitle("\n".join(filter(None, (title, lateness_note(outcomes)))), fontsize=12, color=INK)
        loopback = over_loopback(outcomes)
        _draw_losses(axes["loss"], outcomes, loopback)
        base = outcomes[0]
        seconds = [o.line_s_per_step if loopback else o.median_step_s for o in outcomes]
        what = "What the line takes per step, at least" if loopback else "Seconds per step, median"
        _draw_bars(axes["time"], outcomes, seconds, "s", what)
        _draw_bars(
            axes["bytes"],
            outcomes,
            [o.wan_bytes_per_step / 1e6 for o in outcomes],
            "MB",
            "Sent per step, by both sites",
        )
        steps, over = count_text(len(base.losses), "step"), "bytes" if loopback else "time"
        axes["loss"].set_title(f"The same {steps}: loss over {over}", loc="left", color=INK, fontsize=12)
        figure.supxlabel(
            loopback_note(base.link) if loopback else _caption(outcomes), fontsize=10, color=INK, wrap=True
        )
        figure.savefig(path, dpi=150, facecolor="white")
        pyplot.close(figure)


def _caption(outcomes: Sequence[DemoResult]) -> str:
    """Why a total is more than the number of steps times the seconds per step."""
    first = [outcome.step_s[0] for outcome in outcomes]
    return (
        f"The totals include step 1, which also sets things up and took {min(first):.1f} to {max(first):.1f} s. "
        "Seconds per step are the median of the others."
    )


def _draw_losses(axes: Any, outcomes: Sequence[DemoResult], loopback: bool) -> None:
    for color, outcome in zip(itertools.cycle(_COLORS), outcomes, strict=False):
        steps = [outcome.wan_bytes_per_step / 1e6] * len(outcome.losses) if loopback else outcome.step_s
        spent = list(itertools.accumulate(steps))
        label = outcome.variant.name if loopback else f"{outcome.variant.name}: {spent[-1]:.0f} s in all"
        axes.plot(spent, outcome.losses, color=color, linewidth=2, marker="o", markersize=4, label=label)
    axes.legend(frameon=False, loc="best" if loopback else "upper right", labelcolor=INK)
    axes.set_xlim(left=0)
    axes.set_xlabel(
        "MB sent by both sites, of each step as much as of the mean one" if loopback else "seconds of training"
    )
    axes.set_ylabel("training loss")
    axes.grid(axis="y", color="#e5e5e5")
    axes.set_axisbelow(True)


def _draw_bars(axes: Any, outcomes: Sequence[DemoResult], values: Sequence[float], unit: str, title: str) -> None:
    names = [outcome.variant.name for outcome in outcomes]
    bars = axes.barh(names, values, color=[color for color, _ in zip(itertools.cycle(_COLORS), names, strict=False)])
    axes.bar_label(
        bars,
        labels=[f"{value:.2f} {unit}" if value < 10 else f"{value:.1f} {unit}" for value in values],
        padding=4,
        color=INK,
    )
    axes.invert_yaxis()
    axes.set_xlim(0, max(values) * 1.25)
    axes.set_title(title, loc="left", color=INK, fontsize=12)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)
