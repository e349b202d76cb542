"""What `geocomm.compress` costs where it makes the memory for its result.

`python benchmarks/bench_compress.py [--elements N] [--rounds N] [--cpu LEVEL] [--results FOLDER]`

A round times, one after the other on one thread, a memcpy of the tensor, `compress` into memory that is there (`out=`),
a byte written to every page of a fresh mapping as large as the payload, and `compress` without `out=`. All by the CPU
time of the thread, so that other programs disturb less; ratios are to the copy of the same round, and medians over the
rounds. Letting go of memory is not timed. `held`: how much the process grew by the payload, over its size.
"""

from __future__ import annotations

import argparse
import mmap
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import geocomm
from geocomm.core.native import native
from geocomm.lab.bench.bench_report import Conditions, write_pair
from geocomm.lab.bench.codec_bench import copy_seconds

CODECS = ("none", "bf16", "int8", "int4", "bit1", "deadzone+none", "balanced", "int8+huffman", "lossless")
ALLOWED = 0.1
HEADINGS = ("codec", "CPU", "out=", "touch", "new", "limit: out= + touch + 0.1", "held")


@dataclass(frozen=True)
class Row:
    """Medians, in times of a copy; `held` in times of the payload."""

    codec: str
    level: str
    into_out: float
    touch: float
    new: float
    held: float

    def cells(self) -> tuple[str, ...]:
        limit = self.into_out + self.touch + ALLOWED
        verdict = "met" if self.new <= limit else "MISSED"
        ratios = (f"{ratio:.2f}" for ratio in (self.into_out, self.touch, self.new))
        return (f"`{self.codec}`", self.level, *ratios, f"{limit:.2f}: {verdict}", f"{self.held:.2f}")


def seconds(run: Callable[[], object]) -> tuple[float, object]:
    begin = time.thread_time()
    result = run()
    return time.thread_time() - begin, result


def touch_seconds(size: int) -> float:
    """A byte into each page of memory that is new."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages = torch.frombuffer(memory, dtype=torch.uint8)[:: mmap.PAGESIZE]
    return seconds(lambda: pages.fill_(1))[0]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(codec: str, values: torch.Tensor, rounds: int) -> Row:
    room = torch.empty(geocomm.compress_bound(values, codec), dtype=torch.uint8)
    expected = geocomm.compress(values, codec, out=room, threads=1)
    copied = torch.empty_like(values).fill_(0)
    ratios: list[tuple[float, float, float]] = []
    held = 0.0
    for _ in range(rounds):
        copy = copy_seconds(values, copied, time.thread_time)
        into_out = seconds(lambda: geocomm.compress(values, codec, out=room, threads=1))[0]
        touch = touch_seconds(expected.numel())
        before = resident_bytes()
        new, payload = seconds(lambda: geocomm.compress(values, codec, threads=1))
        held = (resident_bytes() - before) / expected.numel()
        assert torch.equal(payload, expected)
        del payload
        ratios.append((into_out / copy, touch / copy, new / copy))
    return Row(codec, native().cpu_level(), *(statistics.median(column) for column in zip(*ratios, strict=True)), held)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=32 << 20, help="float32 numbers (default 32 Mi)")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--cpu", nargs="+", default=[native().detected_cpu_level()], help="CPU levels")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    torch.set_num_threads(1)
    values = torch.randn(options.elements, generator=torch.Generator().manual_seed(0))
    rows = []
    for level in options.cpu:
        native().set_cpu_level(level)
        for codec in CODECS:
            rows.append(measure(codec, values, options.rounds))
            print(" | ".join(rows[-1].cells()), flush=True)
    lines = [
        "# geocomm.compress with and without out=",
        "",
        *conditions.lines(),
        f"- huge pages: {Path('/sys/kernel/mm/transparent_hugepage/enabled').read_text().strip()}",
        "",
        f"{options.elements / 2**20:g} Mi float32 (normal numbers), one thread, {options.rounds} rounds; CPU time over",
        "that of a memcpy of the tensor in the same round (median). out=: into memory that is there. touch: a byte to",
        "each page of a fresh mapping of the payload's size. new: without out=. held: how much the process grew, over",
        "the payload's size.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
        *("| " + " | ".join(row.cells()) + " |" for row in rows),
        "",
    ]
    path = options.results / "compress.md"
    write_pair(path, "\n".join(lines), {"conditions": asdict(conditions), "rows": [asdict(row) for row in rows]})
    print(f"written: {path}")


if __name__ == "__main__":
    main()
