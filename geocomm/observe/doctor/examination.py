"""What `geocomm doctor` looks at on one machine, and what to do about what is wrong."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from geocomm.core.installation import build_facts
from geocomm.core.options import Options, codec_threads
from geocomm.observe.doctor.doctor_machine import (
    Finding,
    State,
    buffer_findings,
    coding_finding,
    congestion_findings,
    file_findings,
    gpu_findings,
    gpus_of_torch,
    has_kernels_for,
    key_exchange_finding,
    keys_findings,
    listen_findings,
    space_findings,
    streams_of,
    usable_congestion_control,
)

GIB = 1 << 30


@dataclass(frozen=True)
class Examination:
    """What the examination is about: the link, the job's size, the places to look at."""

    rate_bps: float
    rtt_s: float
    peers: int
    local_ranks: int
    options: Options
    keys: str | None
    proc: Path = Path("/proc")
    folders: dict[Path, int] = field(default_factory=lambda: {Path("/dev/shm"): GIB, Path.cwd(): 5 * GIB})
    """Where room is needed, and how many bytes."""


def examine(question: Examination) -> Iterator[Finding]:
    """All that can be seen without a peer."""
    options = question.options
    yield from version_findings(question.proc, options)
    congestion_control = usable_congestion_control()
    yield from congestion_findings(congestion_control, question.proc)
    streams = streams_of(options.streams, congestion_control)
    yield from buffer_findings(question.rate_bps, question.rtt_s, streams, question.proc)
    yield from file_findings(question.peers, streams)
    for folder, wanted_bytes in question.folders.items():
        yield from space_findings(folder, wanted_bytes)
    yield from listen_findings(options.port, question.local_ranks, outbound_only=options.outbound_only)
    yield from keys_findings(question.keys, options.site, insecure=options.security == "insecure")


def version_findings(proc: Path, options: Options) -> Iterator[Finding]:
    """Versions of what must fit together, and what GPUs do."""
    found = versions(proc)
    for name, value in found.items():
        yield Finding(name, value or "none", State.NOTE)
    from geocomm.core.errors import GeocommError
    from geocomm.core.native import native

    try:
        native()
    except (GeocommError, ImportError) as error:
        yield Finding("native module", "cannot be loaded", State.BAD, str(error))
    else:
        yield Finding("native module", "loads", State.OK)
        yield key_exchange_finding()
    gpus, build = gpus_of_torch(), build_facts()
    yield from gpu_findings(gpus, found["CUDA"], found["NVIDIA driver"], build)
    if has_kernels_for(gpus, build):
        yield _coding_finding(options)


def _coding_finding(options: Options) -> Finding:
    import torch

    from geocomm.core.environment import gpu_batches
    from geocomm.group.planning.coding_place import measured_places

    device = torch.device("cuda", torch.cuda.current_device())
    return coding_finding(measured_places(device, codec_threads(options)), in_batches=gpu_batches())


def versions(proc: Path = Path("/proc")) -> dict[str, str]:
    """The versions of geocomm and what is around it; "" for what is missing."""
    import torch
    import torch.cuda.nccl

    from geocomm._version import __version__

    cuda = torch.version.cuda or ""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if cuda and torch.distributed.is_nccl_available() else ""
    return {
        "geocomm": __version__,
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "CUDA": cuda,
        "NCCL": nccl,
        "NVIDIA driver": driver_version(proc),
        "Linux": platform.release(),
    }


def driver_version(proc: Path) -> str:
    """The version of NVIDIA's kernel module; "" if it is not loaded."""
    try:
        words = (proc / "driver/nvidia/version").read_text().split()
    except OSError:
        return ""
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")
