"""Rows of the codec benchmark, and the Markdown and JSON that they become."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from geocomm.lab.bench.bench_report import Conditions, write_pair
from geocomm.lab.bench.codec_bench import error_text

_NOTES = """\
t / t(copy): time over that of a memcpy of the same float32 bytes by one thread in the same round; the median over the
rounds. One thread: its CPU time; two: by the clock. × faster: the peer's time over the codec's, likewise. Into memory
that is there and was touched before. pack:
`geocomm.compress(..., out=)`; unpack: `geocomm.decompress(..., out=)`; add: the same with add=True. +EF: with a float32
residual, fused. Headers, checksums, scales and tables included. Peers run on one thread. Targets are those of AVX-512.
"""
_KERNEL_HEADINGS = (
    "work",
    "codec",
    "data",
    "CPU",
    "threads",
    "GB/s",
    "t / t(copy)",
    "target",
    "ratio",
    "peer",
    "× faster",
)
_LEFT = ("work", "codec", "data", "CPU", "peer", "target", "codec ")


@dataclass(frozen=True)
class KernelRow:
    """One timed case. Seconds and bytes."""

    work: str
    codec: str
    feedback: bool
    data: str
    level: str
    threads: int
    raw_bytes: int
    payload_bytes: int
    times_s: list[float]
    copy_s: list[float]
    peer: str
    peer_s: list[float]
    target: float | None
    peer_target: float | None

    @classmethod
    def of(
        cls,
        case: Any,
        values: torch.Tensor,
        payload_bytes: int,
        times: list[float],
        copies: list[float],
        peers: list[float],
    ) -> KernelRow:
        """Of a `bench_codec.Case`."""
        return cls(
            work=case.work,
            codec=case.codec,
            feedback=case.feedback,
            data=case.data,
            level=case.level,
            threads=case.threads,
            raw_bytes=values.nbytes,
            payload_bytes=payload_bytes,
            times_s=times,
            copy_s=copies,
            peer=case.peer,
            peer_s=peers,
            target=case.target,
            peer_target=case.peer_target,
        )

    @property
    def over_copy(self) -> float:
        return statistics.median(time / copy for time, copy in zip(self.times_s, self.copy_s, strict=True))

    @property
    def speed_up(self) -> float | None:
        """Over the peer."""
        if not self.peer_s:
            return None
        return statistics.median(peer / time for time, peer in zip(self.times_s, self.peer_s, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """With the derived numbers."""
        derived = {"over_copy": self.over_copy, "speed_up": self.speed_up, "min_s": min(self.times_s)}
        return asdict(self) | derived | {"median_s": statistics.median(self.times_s), "max_s": max(self.times_s)}

    def cells(self) -> list[str]:
        """In the order of the headings."""
        target = "" if self.target is None else _verdict(f"≤ {self.target:g}", self.over_copy <= self.target)
        speed_up = "" if self.speed_up is None else f"{self.speed_up:.1f}"
        if self.speed_up is not None and self.peer_target is not None:
            speed_up += f" ({_verdict(f'≥ {self.peer_target:g}', self.speed_up >= self.peer_target)})"
        return [
            self.work,
            self.codec + (" +EF" if self.feedback else ""),
            self.data,
            self.level,
            str(self.threads),
            f"{self.raw_bytes / statistics.median(self.times_s) / 1e9:.2f}",
            f"{self.over_copy:.2f}",
            target,
            f"×{self.raw_bytes / self.payload_bytes:.2f}",
            self.peer,
            speed_up,
        ]


@dataclass(frozen=True)
class RateRow:
    """Ratio to float32 and NMSE of one codec on one data set; with `feedback`, of the first call."""

    data: str
    codec: str
    ratio: float
    nmse: float
    feedback: bool


def _verdict(target: str, is_met: bool) -> str:
    return f"{target}: {'met' if is_met else 'MISSED'}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(headings) + " |",
        "|" + "|".join("---" if heading in _LEFT else "---:" for heading in headings) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]


def rate_table(rows: Sequence[RateRow]) -> list[str]:
    """One line per codec, one column per data set."""
    columns = list(dict.fromkeys(row.data for row in rows))
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        name = row.codec + (" (EF, first call)" if row.feedback else "")
        ratio = f"×{row.ratio:.1f}" if row.ratio >= 10 else f"×{row.ratio:.2f}"
        cells.setdefault(name, {})[row.data] = f"{ratio}, {error_text(row.nmse)}"
    return _table(["codec", *columns], [[name, *(of.get(data, "") for data in columns)] for name, of in cells.items()])


def markdown(kernels: Sequence[KernelRow], rates: Sequence[RateRow], conditions: Conditions) -> str:
    """The whole report."""
    lines = [
        "# Codecs on the CPU",
        "",
        *conditions.lines(),
        "",
    ]
    if kernels:
        size, rounds = kernels[0].raw_bytes / 4 / 2**20, len(kernels[0].times_s)
        lines += [f"## Time, {size:g} Mi float32, {rounds} rounds", ""]
        lines += [*_table(_KERNEL_HEADINGS, [row.cells() for row in kernels]), _NOTES]
    if rates:
        lines += ["## Ratio to float32 and error (NMSE)", "", *rate_table(rates)]
    return "\n".join(lines).rstrip() + "\n"


def write_results(
    kernels: Sequence[KernelRow], rates: Sequence[RateRow], conditions: Conditions, folder: Path, name: str
) -> Path:
    """Write NAME.md and NAME.json into `folder`; returns the former's path."""
    document = {
        "conditions": vars(conditions),
        "kernels": [row.to_dict() for row in kernels],
        "rates": [asdict(row) for row in rates],
    }
    return write_pair(folder / f"{name}.md", markdown(kernels, rates, conditions), document)
