"""What codecs cost: every kernel as a ratio to a copy of the same bytes, and to what does the same without geocomm.

`make bench-codec`, or `python -m pytest benchmarks/bench_codec.py [--elements N] [--rounds N] [--results FOLDER]`.
Every result is verified before it is timed. A round times a memcpy, the peer where there is one, and the codec, one
after the other, each into memory that is there already; ratios are medians over the rounds of what was measured in one
round. Work on one thread is timed by the CPU time of that thread, which other programs disturb less; on two, by the
clock. Rows go to benchmarks/results/codec-speed.md and .json (benchmarks/conftest.py).

Peers: torch operations that do the same; for the entropy stage the same codec without it, then zstd at level 1 on the
payload (package zstandard; huff0, the coder inside of zstd, has no interface of its own).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import zstandard
from bench_codec_report import KernelRow, RateRow

import geocomm
from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.environment import CPU_LEVELS
from geocomm.core.native import native
from geocomm.lab.bench.codec_bench import OTHERS, copy_seconds

BLOCK = 256
BEST = native().detected_cpu_level()
LEVELS = CPU_LEVELS[: CPU_LEVELS.index(BEST) + 1]


@dataclass(frozen=True)
class Case:
    """One row. `target`: most that the ratio to a copy may be, on the best CPU level; `peer_target`: least speed-up."""

    work: str
    codec: str
    feedback: bool = False
    threads: int = 1
    level: str = BEST
    data: str = "gaussian"
    peer: str = ""
    target: float | None = None
    peer_target: float | None = None

    def __str__(self) -> str:
        feedback = "+EF" if self.feedback else ""
        return f"{self.work}-{self.codec}{feedback}-{self.data}-{self.level}-{self.threads}t"


ONE_THREAD = [
    Case("pack", "none"),
    Case("pack", "bf16"),
    Case("pack", "int8", peer="torch int8 blocks", target=0.75, peer_target=10),
    Case("pack", "int8:round=stochastic", target=0.9),
    Case("pack", "int8", feedback=True, target=1.35),
    Case("pack", "int4", target=0.75),
    Case("pack", "bit2"),
    Case("pack", "bit1", target=0.55),
    Case("pack", "bit1", feedback=True),
    Case("pack", "deadzone+none", target=0.75),
    Case("pack", "deadzone:step=1.4+none", target=0.75),
    Case("pack", "topk:k=41", feedback=True, peer="torch.topk"),
    Case("pack", "tiny", feedback=True),
    Case("pack", "loco", feedback=True),
    Case("unpack", "none"),
    Case("unpack", "int8", peer="torch int8 blocks"),
    Case("add", "int8", target=0.7),
    Case("unpack", "int4"),
    Case("add", "int4"),
    Case("unpack", "bit2"),
    Case("unpack", "bit1"),
    Case("unpack", "deadzone+none", target=0.77),
    Case("add", "topk:k=41", feedback=True),
    Case("add", "loco", feedback=True),
]
STAGES = [
    Case(work, codec, data=data, peer=peer)
    for work in ("pack", "unpack")
    for codec, data, peer in (
        ("int8+huffman", "gaussian", "without the stage, then zstd-1"),
        ("int8+huffman", "gradient", "without the stage, then zstd-1"),
        ("int4+huffman", "gradient", "without the stage, then zstd-1"),
        ("balanced", "gradient", ""),
        ("small", "weight-delta", ""),
        ("bf16+huffman", "gradient", ""),
        ("lossless", "gradient-autocast", "zstd-1 of the tensor"),
        ("lossless", "gradient", "zstd-1 of the tensor"),
    )
]
LEVEL_CODECS = ("int8", "balanced", "bit1", "deadzone+none", "int8+huffman", "lossless", "topk:k=41")
BY_LEVEL = [
    Case(work, codec, level=level, feedback=codec_spec(codec).needs_feedback)
    for codec in LEVEL_CODECS
    for work in ("pack", "unpack")
    for level in LEVELS
    if level != BEST
]
TWO_THREADS = [
    Case(work, codec, threads=2, feedback=codec_spec(codec).needs_feedback)
    for codec in ("int8", "bit1", "balanced", "int8+huffman", "topk:k=41", "lossless")
    for work in ("pack", "unpack")
]
CASES = list(dict.fromkeys([*ONE_THREAD, *STAGES, *BY_LEVEL, *TWO_THREADS]))


def timer_of(case: Case) -> Callable[[], float]:
    return time.thread_time if case.threads == 1 else time.perf_counter


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.benchmark(timer=timer_of(case)), id=str(case)) for case in CASES]
)
def test_kernel(
    case: Case, benchmark: Any, rounds: int, values_of: Callable[[str], torch.Tensor], kernel_rows: list
) -> None:
    """Verify, then time."""
    values = values_of(case.data)
    before = native().cpu_level()
    native().set_cpu_level(case.level)
    try:
        work = Work(case, values)
        work.verify()
        copied, copies, peers = torch.empty_like(values), [], []
        peer = make_peer(case, values) if case.peer else None

        def others() -> None:
            copies.append(copy_seconds(values, copied, timer_of(case)))
            if peer is not None:
                begin = time.thread_time()
                peer()
                peers.append(time.thread_time() - begin)

        benchmark.pedantic(work.run, setup=others, rounds=rounds, warmup_rounds=1)
    finally:
        native().set_cpu_level(before)
    times = list(benchmark.stats.stats.data)
    row = KernelRow.of(case, values, work.payload_bytes, times, copies[-len(times) :], peers[-len(times) :])
    benchmark.extra_info.update(row.to_dict())
    kernel_rows.append(row)


@pytest.mark.parametrize("data", ["gaussian", "gradient", "gradient-autocast", "weight-delta"])
def test_rate_and_error(data: str, values_of: Callable[[str], torch.Tensor], rate_rows: list) -> None:
    """Ratio and error of presets and codecs on every kind of data; nothing is timed."""
    values = values_of(data)
    for codec in (*geocomm.codec_presets(), *OTHERS):
        needs = codec_spec(codec).needs_feedback
        payload = geocomm.compress(values, codec, torch.zeros_like(values) if needs else None)
        lost = (values - geocomm.decompress(payload)).double().square().sum().item()
        nmse = lost / values.double().square().sum().item()
        assert not codec_spec(codec).exact or nmse == 0
        rate_rows.append(RateRow(data, codec, values.nbytes / payload.numel(), nmse, needs))


class Work:
    """What is timed, with its memory. work: pack, unpack, or add (unpack and add to a float32 tensor in one pass)."""

    def __init__(self, case: Case, values: torch.Tensor) -> None:
        self._case, self._values = case, values
        self._room = torch.empty(geocomm.compress_bound(values, case.codec), dtype=torch.uint8)
        self._residual = torch.zeros_like(values) if case.feedback else None
        self._payload = self._pack()
        self._result = torch.zeros_like(values)
        self.payload_bytes = self._payload.numel()
        self.run = {"pack": self._pack, "unpack": self._unpack, "add": self._add}[case.work]

    def _pack(self) -> torch.Tensor:
        case = self._case
        return geocomm.compress(self._values, case.codec, self._residual, out=self._room, threads=case.threads)

    def _unpack(self) -> torch.Tensor:
        return geocomm.decompress(self._payload, out=self._result, threads=self._case.threads)

    def _add(self) -> torch.Tensor:
        return geocomm.decompress(self._payload, out=self._result, add=True, threads=self._case.threads)

    def verify(self) -> None:
        """The sum of what arrives and what error feedback keeps is the input; what is exact is so; `add` adds."""
        codec, values = self._case.codec, self._values
        decoded = self._unpack().clone()
        if codec_spec(codec).exact:
            assert torch.equal(decoded.view(torch.int32), values.view(torch.int32))
        else:
            residual = self._residual
            if residual is None:
                residual = torch.zeros_like(values)
                geocomm.compress(values, codec, residual)
            assert torch.equal(residual, values - decoded)
        self._result.fill_(0.0)
        assert torch.equal(self._add(), decoded)


def make_peer(case: Case, values: torch.Tensor) -> Callable[[], object]:
    """What does the same without geocomm; its own memory is kept from round to round as far as the interface allows."""
    if case.peer == "torch.topk":
        count = math.ceil(values.numel() * 41 / 4096)
        magnitudes = torch.empty_like(values)

        def top_k() -> object:
            _, places = torch.topk(torch.abs(values, out=magnitudes), count, sorted=False)
            return values[places]

        return top_k
    if case.peer == "torch int8 blocks":
        rows = values.view(-1, BLOCK)
        codes, scaled, result = (
            torch.empty(rows.shape, dtype=torch.int8),
            torch.empty_like(rows),
            torch.empty_like(rows),
        )

        def quantize() -> torch.Tensor:
            scale = rows.abs().amax(1, keepdim=True).div_(127).clamp_(min=2.0**-126)
            torch.div(rows, scale, out=scaled).round_()
            codes.copy_(scaled)
            return scale

        scale = quantize()
        return quantize if case.work == "pack" else lambda: torch.mul(codes, scale, out=result)
    compressor, expander = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    if case.peer == "zstd-1 of the tensor":
        symbols = values.numpy().view("uint8")
        packed = compressor.compress(symbols)
        return (lambda: compressor.compress(symbols)) if case.work == "pack" else (lambda: expander.decompress(packed))
    plain, result = case.codec.partition("+")[0], torch.empty_like(values)
    room = torch.empty(geocomm.compress_bound(values, plain), dtype=torch.uint8)

    def pack() -> bytes:
        return compressor.compress(geocomm.compress(values, plain, out=room, threads=1).numpy())

    def unpack() -> torch.Tensor:
        payload = torch.frombuffer(bytearray(expander.decompress(packed)), dtype=torch.uint8)
        return geocomm.decompress(payload, out=result, threads=1)

    packed = pack()
    return pack if case.work == "pack" else unpack
