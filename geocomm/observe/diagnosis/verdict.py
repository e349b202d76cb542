"""A cause of slow steps and what it costs, in numbers and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

NAMED_FROM = 0.05
"""A cause is named if it would save so much of a step. Chosen: what is less is not worth a person's time."""
SLOW_SCORE = 0.7
"""A site is slow whose speed is less than this share of that of the others: the threshold of NVIDIA's resiliency
extension (nvidia-resiliency-ext, straggler detection)."""


class Cause(StrEnum):
    """What a step's time may be lost to, in the order in which it is tested."""

    INPUT = "input"
    CHECKPOINT = "checkpoint"
    OUTAGE = "outage"
    PAUSES = "pauses"
    STRAGGLER = "straggler site"
    UNEVEN = "uneven steps"
    BANDWIDTH = "bandwidth"
    WINDOWS = "TCP windows"
    LOSS = "packet loss"
    CODEC = "codec"
    LATENCY = "latency"
    ROUNDS = "rounds of local steps"
    LINE = "line of local steps"
    MISSED = "missed rounds"
    COMPUTE = "computation"
    UNKNOWN = "not known"


class ToldPart(NamedTuple):
    """A part of a step that the program tells of, and that is a cause by itself."""

    cause: Cause
    name: str
    """Of its field in `run_window.Step`."""
    what: str
    fix: str


TOLD_PARTS = (
    ToldPart(
        Cause.INPUT,
        "input",
        "waiting for data",
        "Give the data loader more workers, or keep its data on a local disk (geocomm train: data.cache_dir).",
    ),
    ToldPart(
        Cause.CHECKPOINT, "checkpoint", "writing checkpoints", "Write checkpoints less often, or to a faster disk."
    ),
)


@dataclass(frozen=True)
class Verdict:
    """A cause, and what it costs."""

    cause: Cause
    where: str
    """A site, or two sites as "a - b"; empty: everywhere."""
    saved_seconds: float
    """The seconds of a step that were saved if the cause were gone."""
    share: float
    """The same as a share of a step."""
    evidence: Sequence[tuple[str, str]]
    """What was looked at, and what was there."""
    fix: str
    at_most: bool = False
    """How much could be saved is not known; it is no more than said."""
    text: str = ""
    """What it is, in a sentence; empty: the cause and what it costs say it."""

    def row(self) -> dict[str, Any]:
        """The verdict as values for JSON."""
        return {
            "cause": str(self.cause),
            "where": self.where,
            "saved_seconds": round(self.saved_seconds, 6),
            "share": round(self.share, 4),
            "at_most": self.at_most,
            "text": headline(self),
            "evidence": [list(row) for row in self.evidence],
            "fix": self.fix,
        }


def main_site(by_site: Mapping[str, float]) -> str:
    """The site that most of it is at; empty: at several."""
    worst = max(by_site, key=lambda name: by_site[name])
    others = [seconds for name, seconds in by_site.items() if name != worst]
    return worst if others and max(others) < by_site[worst] / 2 else ""


def headline(verdict: Verdict) -> str:
    """A verdict in a line."""
    if verdict.text:
        return verdict.text
    if verdict.cause is Cause.COMPUTE:
        return "Computation: the steps wait for nothing else that is known."
    if verdict.cause is Cause.UNKNOWN:
        return "Not known."
    where = f", {verdict.where}" if verdict.where else ""
    most = "at most " if verdict.at_most else ""
    name = verdict.cause[0].upper() + verdict.cause[1:]
    saved = f"{most}{verdict.saved_seconds:.3f} s shorter ({verdict.share:.0%})"
    return f"{name}{where}: without it, a step would be {saved}."


def seconds_text(seconds: float) -> str:
    """A time as people write it."""
    return f"{seconds:.2f} s" if abs(seconds) >= 1 else f"{seconds * 1e3:.1f} ms"
