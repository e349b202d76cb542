"""What the training benchmark writes: a Markdown table, its data in JSON, and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench_wan import PACING

from geocomm.lab.bench.bench_report import Conditions, write_pair
from geocomm.lab.bench.wan_bench import describe_link
from geocomm.lab.emulator.emulated_links import EmulatedLink

QUALITY_TARGETS = {"int8": 0.005, "int4": 0.005, "balanced": 0.005, "small": 0.01}
"""Most that the mean held-out loss may lie above the exact one's, as a share of it."""
SPEED_TARGETS = {"exact": 3.0, "balanced": 8.0, "small": 12.0}
"""Least times that training to the same loss is faster than on Gloo as users run it, or all that computing allows."""
OVERLAP_TARGET = 1.15
"""Most of a step's time over the longer of its computing and its communication, a round trip apart."""
_GLOO = "gloo"
_EXACT = "exact"
_CURVE_OF = dict.fromkeys(("gloo", "gloo8", "exact-paced", "lossless", "lossless-paced"), "exact")


@dataclass(frozen=True)
class Quality:
    """A method's held-out loss over the steps, mean over the seeds."""

    method: str
    parameters: int
    final: tuple[float, ...]
    """By seed."""
    curve: tuple[tuple[int, float], ...]
    """(step, mean loss)."""

    @classmethod
    def of(cls, method: str, results: Sequence[Mapping[str, Any]]) -> Quality:
        """Of one run per seed."""
        curves = [result["held_out"] for result in results]
        mean = tuple(
            (points[0][0], statistics.mean(loss for _, loss in points)) for points in zip(*curves, strict=True)
        )
        return cls(method, results[0]["parameters"], tuple(curve[-1][1] for curve in curves), mean)

    @property
    def mean_final(self) -> float:
        """Over the seeds."""
        return statistics.mean(self.final)

    def steps_to(self, loss: float) -> float | None:
        """Steps after which the mean curve is at `loss` for the first time, interpolated; None: never."""
        before: tuple[int, float] | None = None
        for step, value in self.curve:
            if value <= loss:
                if before is None or before[1] == value:
                    return float(step)
                return before[0] + (step - before[0]) * (before[1] - loss) / (before[1] - value)
            before = (step, value)
        return None


@dataclass(frozen=True)
class StepTime:
    """Seconds of a training step over the line."""

    method: str
    parameters: int
    step_s: float
    compute_s: float
    """Of a step without communication."""
    backward_s: float
    """Of its backward pass, all that DDP overlaps with communication."""
    communication_s: float | None
    """Of a step without computing; None: not measured."""
    steps: int

    @classmethod
    def of(cls, method: str, result: Mapping[str, Any]) -> StepTime:
        """Of a run."""
        return cls(
            method,
            result["parameters"],
            result["step_s"],
            result["compute_s"],
            result["backward_s"],
            result.get("communication_s"),
            len(result["steps_s"]),
        )

    @property
    def exposed_s(self) -> float:
        """Communication that backward did not hide."""
        return max(0.0, self.step_s - self.compute_s)

    @property
    def least_s(self) -> float | None:
        """A step whose backward pass and communication hide each other entirely."""
        if self.communication_s is None:
            return None
        return self.compute_s - self.backward_s + max(self.backward_s, self.communication_s)

    def overlap_bound_s(self, link: EmulatedLink) -> float | None:
        """Most that a step may take where the longer of computing and communication hides the other."""
        if self.communication_s is None:
            return None
        return OVERLAP_TARGET * max(self.compute_s, self.communication_s) + 2 * link.delay_s


@dataclass(frozen=True)
class Report:
    """All of it."""

    conditions: Conditions
    link: EmulatedLink
    steps: int
    qualities: Sequence[Quality]
    times: Sequence[StepTime]
    by_bucket: Mapping[float, StepTime]
    """Of one method, by DDP's bucket_cap_mb."""

    def quality(self, method: str) -> Quality | None:
        """Of the method; that of exact sums for all that are exact."""
        return next((q for q in self.qualities if q.method == _CURVE_OF.get(method, method)), None)

    @property
    def common_loss(self) -> float | None:
        """The best held-out loss that all methods with a target reach; None without an exact run."""
        compared = [q for q in self.qualities if q.method in (_EXACT, *QUALITY_TARGETS)]
        if self.quality(_EXACT) is None:
            return None
        return max(min(loss for _, loss in q.curve) for q in compared)

    def seconds_to_loss(self, time: StepTime) -> float | None:
        """(3): steps of (1) times seconds of (2)."""
        quality, loss = self.quality(time.method), self.common_loss
        steps = quality.steps_to(loss) if quality is not None and loss is not None else None
        return None if steps is None else steps * time.step_s


def write_report(report: Report, path: Path) -> Path:
    """PATH in Markdown, its data as .json and a plot as .png beside it; returns `path`."""
    write_pair(path, "\n".join(_markdown(report, path)), asdict(report))
    _plot(report, path.with_suffix(".png"))
    return path


def _markdown(report: Report, path: Path) -> list[str]:
    here = report.conditions
    lines = [
        "# Training with compressed gradients",
        "",
        f"- date: {here.date}",
        f"- machine: {here.machine}; load averages at the start: {here.load}",
        f"- software: {here.software}; system's TCP congestion control (Gloo's): {here.congestion_control}",
        f"- commit: {here.commit}",
        f"- command: `{here.command}`",
        "",
        f"![held-out loss]({path.with_suffix('.png').name})",
        "",
        "## (1) Loss on held-out text",
        "",
    ]
    if report.qualities:
        first = report.qualities[0]
        lines += [
            f"{first.parameters / 1e6:.1f} M parameters, {report.steps} steps, {len(first.final)} seeds, two sites of "
            "one rank on loopback. over exact: final loss above that of exact sums, by seed, and of the means; how far "
            "the seeds are apart says what the means are worth.",
            "",
            "| method | final loss, by seed | mean | over exact, by seed | mean | target |",
            "|---|---|---:|---|---:|---|",
            *(_quality_line(report, quality) for quality in report.qualities),
            "",
        ]
    if report.times:
        lines += [
            "## (2) Time of a step, (3) time to the same loss",
            "",
            f"{report.times[0].parameters / 1e6:.1f} M parameters over {describe_link(report.link)}; median of "
            f"{report.times[0].steps} steps, from end to end; compute: without communication. To the loss "
            f"{_number(report.common_loss, '.4f')}: steps of (1), with the small model, times seconds of (2). "
            "speed-up: of Gloo as users run it; bound: the speed-up if communication took no time. gloo8: its "
            "interface named eight times, every bucket in eight slices. paced: geocomm's streams capped at "
            f"{PACING:.0%} of the line's rate (GEOCOMM_MAX_PACING_BPS). lossless: bit for bit what exact gives.",
            "",
            "| method | step s | compute s | steps to loss | s to loss | speed-up | bound | target |",
            "|---|---:|---:|---:|---:|---:|---:|---|",
            *(_time_line(report, time) for time in report.times),
            "",
            "## Overlap",
            "",
            "communication: a step whose gradients are all there at once. exposed: step less compute. least: all of "
            "the backward pass and communication hidden under each other, and the rest, which DDP does not overlap "
            "(forward, clipping, optimizer), beside them. target: "
            f"{OVERLAP_TARGET} x the longer of compute and communication, and a round trip.",
            "",
            "| method | step s | compute s | of it backward s | communication s | exposed s | least s | target |",
            "|---|---:|---:|---:|---:|---:|---:|---|",
            *(_overlap_line(report, time) for time in report.times if time.communication_s is not None),
            "",
        ]
    if report.by_bucket:
        method = next(iter(report.by_bucket.values())).method
        lines += [
            f"## Size of DDP's buckets, {method}",
            "",
            "| bucket_cap_mb | step s | communication s | exposed s |",
            "|---:|---:|---:|---:|",
            *(
                f"| {mib:g} | {time.step_s:.2f} | {_number(time.communication_s, '.2f')} | {time.exposed_s:.2f} |"
                for mib, time in report.by_bucket.items()
            ),
            "",
        ]
    return lines


def _quality_line(report: Report, quality: Quality) -> str:
    exact = report.quality(_EXACT)
    over = None if exact is None else quality.mean_final / exact.mean_final - 1
    target = QUALITY_TARGETS.get(quality.method)
    finals = ", ".join(f"{loss:.4f}" for loss in quality.final)
    by_seed = (
        "" if exact is None else ", ".join(f"{o / e - 1:+.2%}" for o, e in zip(quality.final, exact.final, strict=True))
    )
    shown = "" if over is None else f"{over:+.2%}"
    cells = [quality.method, finals, f"{quality.mean_final:.4f}", by_seed, shown, _verdict(over, target, at_most=True)]
    return "| " + " | ".join(cells) + " |"


def _time_line(report: Report, time: StepTime) -> str:
    gloo = next((other for other in report.times if other.method == _GLOO), None)
    own, base = report.seconds_to_loss(time), None if gloo is None else report.seconds_to_loss(gloo)
    quality, loss = report.quality(time.method), report.common_loss
    steps = quality.steps_to(loss) if quality is not None and loss is not None else None
    speed_up = base / own if own and base else None
    bound = base / (steps * time.compute_s) if steps and base else None
    target = SPEED_TARGETS.get(time.method)
    verdict = _verdict(speed_up, target if target is None or bound is None else min(target, bound), at_most=False)
    cells = [time.method, f"{time.step_s:.2f}", f"{time.compute_s:.2f}", _number(steps, ".0f"), _number(own, ".0f")]
    return "| " + " | ".join([*cells, _number(speed_up, ".1f"), _number(bound, ".1f"), verdict]) + " |"


def _overlap_line(report: Report, time: StepTime) -> str:
    bound = time.overlap_bound_s(report.link)
    verdict = "" if bound is None else f"≤ {bound:.2f}: {'met' if time.step_s <= bound else 'MISSED'}"
    numbers = (time.step_s, time.compute_s, time.backward_s, time.communication_s, time.exposed_s, time.least_s)
    return "| " + " | ".join([time.method, *(_number(number, ".2f") for number in numbers), verdict]) + " |"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _verdict(value: float | None, target: float | None, *, at_most: bool) -> str:
    if value is None or target is None:
        return ""
    met = value <= target if at_most else value >= target
    shown = f"≤ {target:.1%}" if at_most else f"≥ {target:.1f}"
    return f"{shown}: {'met' if met else 'MISSED'}"


def _plot(report: Report, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    for quality in report.qualities:
        by_step.plot([step for step, _ in quality.curve], [loss for _, loss in quality.curve], label=quality.method)
    for time in report.times:
        quality = report.quality(time.method)
        if quality is not None:
            hours = [step * time.step_s / 3600 for step, _ in quality.curve]
            by_time.plot(hours, [loss for _, loss in quality.curve], label=time.method)
    by_step.set(xlabel="steps", ylabel="held-out loss", title="loopback")
    by_time.set(xlabel="hours", xscale="log", title=describe_link(report.link))
    for axes in (by_step, by_time):
        if axes.lines:
            axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
