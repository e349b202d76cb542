"""The part of `geocomm doctor` that looks at GPUs: which ones torch sees, whether this build has kernels for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from geocomm.core.build_facts import BuildFacts
from geocomm.observe.doctor.finding import Finding, State

LEAST_CAPABILITY = (8, 0)
"""The least of CMAKE_CUDA_ARCHITECTURES in CMakeLists.txt."""
_REBUILD = "GEOCOMM_CUDA=on pip install --no-build-isolation --force-reinstall --no-deps ."


@dataclass(frozen=True)
class Gpu:
    """A GPU as torch names it."""

    name: str
    capability: tuple[int, int]
    """Compute capability: (9, 0) of an H100."""


def gpus_of_torch() -> list[Gpu]:
    """NVIDIA's GPUs that this process can use."""
    import torch

    if not torch.cuda.is_available():
        return []
    every = range(torch.cuda.device_count())
    return [Gpu(torch.cuda.get_device_name(one), torch.cuda.get_device_capability(one)) for one in every]


def gpu_findings(gpus: Sequence[Gpu], torch_cuda: str, driver: str, build: BuildFacts | None) -> Iterator[Finding]:
    """torch_cuda, driver: their versions, "" where there is none; build: None where nothing was built."""
    yield _seen(gpus, torch_cuda, driver)
    if build is not None:
        yield _kernels(gpus, torch_cuda, build)


def _seen(gpus: Sequence[Gpu], torch_cuda: str, driver: str) -> Finding:
    if gpus:
        return Finding("GPUs", ", ".join(f"{count} x {name}" for name, count in _names(gpus).items()), State.NOTE)
    if not driver:
        return Finding("GPUs", "none", State.NOTE)
    if not torch_cuda:
        fix = "install a CUDA build of torch, then build geocomm again; with this torch, training runs on the CPU"
        return Finding("GPUs", "NVIDIA's driver is here, but torch is a CPU build", State.WARNING, fix)
    fix = f"nvidia-smi, CUDA_VISIBLE_DEVICES, and whether the driver {driver} is new enough for CUDA {torch_cuda}"
    return Finding("GPUs", "NVIDIA's driver is here, but torch sees no GPU", State.WARNING, f"look at {fix}")


def _kernels(gpus: Sequence[Gpu], torch_cuda: str, build: BuildFacts) -> Finding:
    name = "CUDA kernels"
    if build.cuda_kernels:
        older = _names([gpu for gpu in gpus if gpu.capability < LEAST_CAPABILITY])
        if older:
            least = ".".join(map(str, LEAST_CAPABILITY))
            fix = f"build without them: {_REBUILD.replace('=on', '=off')} in geocomm's source tree"
            return Finding(name, f"need compute capability {least}: not for {', '.join(older)}", State.BAD, fix)
        return Finding(name, "in this build", State.OK)
    value = f"not in this build{f': {build.why_no_cuda}' if build.why_no_cuda else ''}"
    if not gpus:
        return Finding(name, value, State.NOTE)
    fix = (
        f"put the nvcc of CUDA {torch_cuda} (torch's) on PATH, and in geocomm's source tree: {_REBUILD}; without them "
        "the CPU compresses what GPUs send, and wait() blocks the host"
    )
    return Finding(name, value, State.WARNING, fix)


def _names(gpus: Sequence[Gpu]) -> Counter[str]:
    return Counter(gpu.name for gpu in gpus)
