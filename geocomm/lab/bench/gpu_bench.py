"""What the codecs' kernels cost on a GPU beside a copy of its memory, and what an all-reduce of two sites takes.

Each codec's bytes are compared with the CPU's before it is timed. The time of kernels is what the device was busy, as
torch's profiler counts it; that of a call is by the clock, with the wait for the result's size in it.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from geocomm.codecs.codec_spec import codec_spec
from geocomm.codecs.tensor_codec import compress, decompress
from geocomm.core.bad_input import BadInput, UserError
from geocomm.core.installation import build_facts
from geocomm.lab.bench.bench_report import table_lines
from geocomm.lab.emulator.local_job import run_local_ranks

CODECS = (
    "none",
    "bf16",
    "int8",
    "int8:round=stochastic",
    "int4",
    "bit2",
    "bit1",
    "deadzone+none",
    "balanced",
    "small",
    "int8+huffman",
    "topk:k=41",
    "tiny",
    "loco",
    "lossless",
)
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_CHECKED_ELEMENTS = (1 << 20) + 37
_TO_HOST = "Memcpy DtoH"
"""Copies whose time the bus and the host set: only calls count them."""
KERNEL_HEADINGS = ("codec", "ratio", "pack: kernels", "× copy", "call", "unpack: kernels", "× copy", "call")
REDUCE_HEADINGS = ("all-reduce", "tensor", "median", "× Gloo")
_NOTES = """\
Kernels: milliseconds of the device for the tensor, median. × copy: over those of a copy of the tensor from one place of
the device's memory to another. Call: milliseconds by the clock. Codecs with error feedback include it. All-reduce: two
sites of one rank over loopback without TLS; cuda: the tensor of one of them is on the GPU.
"""


class GpuBenchError(UserError, RuntimeError):
    """What the GPU gave is not what the CPU gives, or a rank failed."""


@dataclass(frozen=True)
class KernelRow:
    """One codec on one tensor; all times in seconds."""

    codec: str
    raw_bytes: int
    payload_bytes: int
    pack_s: float
    pack_call_s: float
    unpack_s: float
    unpack_call_s: float
    copy_s: float
    kernels: dict[str, float]
    """The seconds of each kernel in one packing and one unpacking, the longest first."""


@dataclass(frozen=True)
class ReduceRow:
    """The all-reduces of one codec, or of Gloo."""

    name: str
    device: str
    seconds: float
    gloo_s: float


def require_gpu() -> str:
    """The name of the GPU. BadInput: there is none, or geocomm was built without kernels."""
    if not torch.cuda.is_available():
        raise BadInput("torch sees no GPU: geocomm bench gpu needs one, and a torch built for CUDA")
    facts = build_facts()
    if facts is None or not facts.cuda_kernels:
        raise BadInput(f"geocomm was built without CUDA kernels: {facts.why_no_cuda if facts else 'not at all'}")
    return torch.cuda.get_device_name()


def verify(codec: str, elements: int = _CHECKED_ELEMENTS, dtypes: Sequence[torch.dtype] = _DTYPES) -> None:
    """Payloads and residuals are the CPU's. GpuBenchError where they are not."""
    exact = codec_spec(codec).exact
    for dtype in dtypes:
        values = torch.randn(elements, generator=torch.Generator().manual_seed(1)).to(dtype)
        on_host = None if exact else torch.zeros(elements)
        on_device = None if on_host is None else on_host.cuda()
        for call in range(2):
            expected = compress(values, codec, on_host, seed=call)
            payload = compress(values.cuda(), codec, on_device, seed=call)
            same = torch.equal(payload.cpu(), expected)
            if on_device is not None and on_host is not None:
                same &= torch.equal(on_device.cpu(), on_host)
            same &= torch.equal(decompress(payload).cpu().view(torch.uint8), decompress(expected).view(torch.uint8))
            if not same:
                raise GpuBenchError(f"codec {codec}, {elements} of {dtype}: the GPU gives other bits than the CPU")


def kernel_row(codec: str, elements: int, rounds: int) -> KernelRow:
    """Verify, then time: a copy, a packing and an unpacking in turn."""
    verify(codec)
    verify(codec, elements, [torch.float32])
    values = torch.randn(elements, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    residual = torch.zeros_like(values) if codec_spec(codec).needs_feedback else None
    copied, decoded = torch.empty_like(values), torch.empty_like(values)
    payload = compress(values, codec, residual)

    def pack() -> None:
        compress(values, codec, residual)

    def unpack() -> None:
        decompress(payload, decoded)

    pack_call, unpack_call = _call_seconds(pack, rounds), _call_seconds(unpack, rounds)
    copy = _kernels(lambda: copied.copy_(values), rounds)
    packed, unpacked = _kernels(pack, rounds), _kernels(unpack, rounds)
    both = {name: packed.get(name, 0.0) + unpacked.get(name, 0.0) for name in packed | unpacked}
    return KernelRow(
        codec=codec,
        raw_bytes=values.nbytes,
        payload_bytes=payload.numel(),
        pack_s=sum(packed.values()),
        pack_call_s=pack_call,
        unpack_s=sum(unpacked.values()),
        unpack_call_s=unpack_call,
        copy_s=sum(copy.values()),
        kernels=dict(sorted(both.items(), key=lambda item: -item[1])),
    )


def _call_seconds(run: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def _kernels(run: Callable[[], object], rounds: int) -> dict[str, float]:
    """Seconds of the device by kernel, for one run: the mean over `rounds`."""
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        for _ in range(rounds):
            run()
        torch.cuda.synchronize()
    found = {event.key: event.self_device_time_total / rounds / 1e6 for event in profile.key_averages()}
    return {name: seconds for name, seconds in found.items() if seconds > 0 and not name.startswith(_TO_HOST)}


def reduce_rows(size_bytes: int, rounds: int) -> list[ReduceRow]:
    """All-reduces of CPU tensors between two sites of one rank, and with one of them on the GPU.

    GpuBenchError: a rank failed, or a sum is wrong.
    """
    with tempfile.TemporaryDirectory(prefix="geocomm-gpu-") as folder:
        out, log = Path(folder) / "rows.json", Path(folder) / "log"
        command = [sys.executable, "-m", "geocomm.lab.bench.gpu_bench_worker", str(out), str(size_bytes), str(rounds)]
        with log.open("w") as writer:
            statuses = run_local_ranks(command, ["a", "b"], writer)
        if any(statuses):
            raise GpuBenchError(f"the ranks of the all-reduce ended with {statuses}:\n{log.read_text()[-4000:]}")
        times = json.loads(out.read_text())
    gloo = next(entry["seconds"] for entry in times if entry["name"] == "gloo")
    return [ReduceRow(entry["name"], entry["device"], entry["seconds"], gloo) for entry in times]


def kernel_cells(row: KernelRow) -> list[str]:
    """In the order of KERNEL_HEADINGS."""
    return [
        f"`{row.codec}`",
        f"{row.raw_bytes / row.payload_bytes:.2f}",
        f"{row.pack_s * 1e3:.3f}",
        f"{row.pack_s / row.copy_s:.2f}",
        f"{row.pack_call_s * 1e3:.3f}",
        f"{row.unpack_s * 1e3:.3f}",
        f"{row.unpack_s / row.copy_s:.2f}",
        f"{row.unpack_call_s * 1e3:.3f}",
    ]


def reduce_cells(row: ReduceRow) -> list[str]:
    """In the order of REDUCE_HEADINGS."""
    return [f"`{row.name}`", row.device, f"{row.seconds * 1e3:.1f} ms", f"{row.seconds / row.gloo_s:.2f}"]


def markdown(
    kernels: Sequence[KernelRow], reduces: Sequence[ReduceRow], header: Sequence[str], remarks: Sequence[str]
) -> str:
    """The report. `header`: lines about the conditions; `remarks`: a line for each thing that failed."""
    lines = ["# geocomm on a GPU", "", *header, ""]
    if kernels:
        copy = statistics.median(row.copy_s for row in kernels)
        rate = 2 * kernels[0].raw_bytes / copy / 1e12
        elements = f"{kernels[0].raw_bytes / 4 / 2**20:g} Mi float32"
        lines += [f"A copy of {elements} takes {copy * 1e3:.3f} ms: {rate:.2f} TB/s, read and written.", ""]
    for headings, rows in (
        (KERNEL_HEADINGS, [kernel_cells(row) for row in kernels]),
        (REDUCE_HEADINGS, [reduce_cells(row) for row in reduces]),
    ):
        if rows:
            lines += [*table_lines(headings, rows), ""]
    if remarks:
        lines += ["## What failed", "", *(f"- {remark}" for remark in remarks), ""]
    return "\n".join([*lines, _NOTES])


def document(kernels: Sequence[KernelRow], reduces: Sequence[ReduceRow], conditions: Any) -> dict[str, Any]:
    """The results for programs, with the time of every kernel."""
    return {
        "conditions": asdict(conditions),
        "kernels": [asdict(row) for row in kernels],
        "reduces": [asdict(row) for row in reduces],
    }
