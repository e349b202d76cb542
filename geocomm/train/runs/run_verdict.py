"""What a run was like, in a few lines: speed, losses, the WAN's part, and which of the two bounds it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

_WAN_BOUND_SHARE = 0.5
"""The share of the step time exposed to the WAN from which on the WAN bounds a run."""


class RunVerdict:
    """Takes the entries of this start of a run, in order, and tells of them at its end."""

    def __init__(self, total_steps: int) -> None:
        """total_steps: of the whole run."""
        self._total_steps = total_steps
        self._losses: list[tuple[int, float]] = []
        self._held_out: float | None = None
        self._seconds: list[float] = []
        self._exposed: list[float | None] = []
        self._wire_bytes = 0
        self._sites: list[str] = []
        self._computing: dict[str, list[float]] = {}

    def add(self, kind: str, entry: Mapping[str, Any]) -> None:
        """An entry of metrics.jsonl; those of other kinds than step, sites and eval say nothing here."""
        if kind == "eval":
            self._held_out = entry["loss"]
        elif kind == "step":
            if entry["loss"] is not None:
                self._losses.append((entry["step"], entry["loss"]))
            self._seconds.append(entry["step_seconds"])
            self._exposed.append(entry["exposed_seconds"])
            self._wire_bytes += entry["wire_bytes_sent"] or 0
            self._sites = list(entry["sites"])
        if kind in ("step", "sites"):
            for site, values in entry["sites"].items():
                if values["exposed_seconds"] is not None:
                    steps = values.get("steps", 1)
                    own = values["step_seconds"] - values["exposed_seconds"] / steps
                    self._computing.setdefault(site, []).append(own)

    def text(self, step: int, complete: bool) -> str:
        """The verdict in Markdown. step: steps done."""
        lines = [f"complete after {step} steps" if complete else f"stopped after step {step} of {self._total_steps}"]
        if self._losses:
            (first, loss_then), (last, loss_now) = self._losses[0], self._losses[-1]
            held_out = "" if self._held_out is None else f"; held-out {self._held_out:.4f}"
            lines.append(f"loss: {loss_then:.4f} at step {first}, {loss_now:.4f} at step {last}{held_out}")
            lines.append(f"step: {statistics.median(self._seconds):.3g} s, the median of {len(self._seconds)}")
            lines += self._wan_lines()
        return "\n".join(f"- {line}" for line in lines)

    def _wan_lines(self) -> list[str]:
        # The first step also connects and compiles.
        steps = list(zip(self._seconds, self._exposed, strict=True))
        steps = steps[1:] or steps
        exposed = [wait for _, wait in steps if wait is not None]
        if len(exposed) < len(steps):
            return ["the WAN's part is not known: the backend does not count it"]
        seconds = sum(second for second, _ in steps)
        share = sum(exposed) / seconds
        who = f"site {self._sites[0]}" if len(self._sites) == 1 else "all sites together"
        lines = [f"WAN: {self._wire_bytes / 1e6:.1f} MB sent by {who}; {share:.0%} of the step time was exposed to it"]
        if len(self._computing) > 1:
            own = {site: statistics.median(values) for site, values in self._computing.items()}
            slowest, fastest = max(own, key=own.__getitem__), min(own, key=own.__getitem__)
            lines.append(
                f"slowest site: {slowest}, {own[slowest]:.3g} s a step without its waiting; fastest: {fastest}, "
                f"{own[fastest]:.3g} s"
            )
        mean, wait = seconds / len(steps), sum(exposed) / len(steps)
        if share >= _WAN_BOUND_SHARE:
            lines.append(f"WAN-bound: of {mean:.3g} s a step, {wait:.3g} s went by in waiting for other sites")
        else:
            lines.append(f"compute-bound: of {mean:.3g} s a step, a WAN without any delay would save {wait:.3g} s")
        return lines
