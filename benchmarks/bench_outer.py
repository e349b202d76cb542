"""What a round of local steps costs the core that makes it: `python benchmarks/bench_outer.py [--elements N]`.

Each part works on one fragment, on one thread, in memory that is there, and is timed by the CPU time of the thread.
Ratios are to a copy of 12 bytes for each element (anchor, momentum and residual), taken in the same pass; medians over
the passes. Results are checked first: the outer step against its definition in NumPy, which adds and multiplies
apart. The peer is torch.optim.SGD with Nesterov momentum (foreach), whose bits may differ between machines.
A run stands in benchmarks/results/local-cpu.md.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

import geocomm
from geocomm.lab.bench.bench_report import Conditions, write_pair
from geocomm.sync.local_steps.model.fragments import Tensor, digest, make_fragments
from geocomm.sync.local_steps.outer.anchor import merge_local, outer_step
from geocomm.sync.local_steps.outer.averaging import average_deltas
from geocomm.sync.local_steps.outer.site_weights import SiteWeights, take_delta
from geocomm.sync.local_steps.settings.local_settings import Nesterov

OUTER_STEP = "outer step"
TARGET = 3.0
CODECS = ("int4:block=128", "none")


@dataclass(frozen=True)
class Row:
    """Median time of a part, in copies of 12 bytes an element."""

    part: str
    ratio: float

    def cells(self) -> tuple[str, ...]:
        target = ""
        if self.part == OUTER_STEP:
            target = f"≤ {TARGET:g}: {'met' if self.ratio <= TARGET else 'MISSED'}"
        return (self.part, f"{self.ratio:.2f}", target)


def parts_of_round(numel: int) -> dict[str, Callable[[], object]]:
    """By name. Each may be called again and again."""
    generator = torch.Generator().manual_seed(1)
    anchor, momentum, delta, other, local, residual = (torch.randn(numel, generator=generator) for _ in range(6))
    model, mean = SiteWeights([local], of_model=True), torch.empty(numel)
    outer = Nesterov(1.0, 0.8)
    (fragment,) = make_fragments([Tensor("weights", numel)], 1)
    delta.mul_(1e-3)
    check_outer_step(outer, anchor[:100_000].clone(), momentum[:100_000].clone(), delta[:100_000])
    parts: dict[str, Callable[[], object]] = {
        "delta and its norm": lambda: take_delta(anchor, model, keep=False),
        "delta and its norm, weights kept": lambda: take_delta(anchor, model, keep=True),
        "mean of two sites": lambda: average_deltas("mean", fragment, [delta, other], [1, 1], out=mean),
        OUTER_STEP: lambda: outer_step(outer, anchor, momentum, delta),
        "digest of anchor and momentum": lambda: digest([anchor, momentum]),
        "merge 0.5": lambda: merge_local(0.5, local, anchor, None),
        "merge carry": lambda: merge_local("carry", local, anchor, other),
        "torch.optim.SGD (peer of the outer step)": torch_sgd(outer, anchor.clone(), delta),
    }
    residual.zero_()
    decoded = torch.empty(numel)
    for codec in CODECS:
        feedback = None if codec == "none" else residual
        frame = geocomm.compress(delta, codec, feedback, seed=1, threads=1)
        room = torch.empty(geocomm.compress_bound(delta, codec), dtype=torch.uint8)
        parts[f"encode {codec}"] = lambda codec=codec, feedback=feedback, room=room: geocomm.compress(
            delta, codec, feedback, seed=1, threads=1, out=room
        )
        parts[f"decode {codec}"] = lambda frame=frame: geocomm.decompress(frame, out=decoded, threads=1)
    return parts


def check_outer_step(outer: Nesterov, anchor: torch.Tensor, momentum: torch.Tensor, delta: torch.Tensor) -> None:
    """Raise AssertionError where a bit differs from the definition."""
    lr, mu = np.float32(outer.lr), np.float32(outer.momentum)
    velocity = mu * momentum.numpy() + delta.numpy()
    expected = anchor.numpy() - lr * (mu * velocity + delta.numpy())
    outer_step(outer, anchor, momentum, delta)
    assert np.array_equal(anchor.numpy(), expected)
    assert np.array_equal(momentum.numpy(), velocity)


def torch_sgd(outer: Nesterov, anchor: torch.Tensor, delta: torch.Tensor) -> Callable[[], object]:
    """The same step by torch."""
    parameter = torch.nn.Parameter(anchor)
    parameter.grad = delta
    return torch.optim.SGD([parameter], lr=outer.lr, momentum=outer.momentum, nesterov=True, foreach=True).step


def measure(numel: int, passes: int) -> list[Row]:
    """Parts by turns, so that a busy moment meets all of them."""
    source, copied = torch.randn(3 * numel), torch.zeros(3 * numel)
    parts = parts_of_round(numel)
    for run in parts.values():
        run()
    ratios: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(passes):
        copy = seconds(lambda: copied.copy_(source))
        for name, run in parts.items():
            ratios[name].append(seconds(run) / copy)
    return [Row(name, statistics.median(values)) for name, values in ratios.items()]


def seconds(run: Callable[[], object]) -> float:
    begin = time.thread_time()
    run()
    return time.thread_time() - begin


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=8 << 20, help="of the fragment (default 8 Mi)")
    parser.add_argument("--passes", type=int, default=15, help="(default 15)")
    parser.add_argument("--out", type=Path, help="a Markdown file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    rows = measure(arguments.elements, arguments.passes)
    lines = [
        "# What a round of local steps costs a core",
        "",
        *conditions.lines(),
        f"- a fragment of {arguments.elements:,} elements; one thread; CPU time",
        "",
        "| part | copies of 12 bytes an element | target |",
        "|---|---:|---|",
        *(f"| {' | '.join(row.cells())} |" for row in rows),
    ]
    print("\n".join(lines))
    if arguments.out is not None:
        write_pair(arguments.out, "\n".join(lines), {"conditions": asdict(conditions), "rows": list(map(asdict, rows))})
    return 0


if __name__ == "__main__":
    sys.exit(main())
