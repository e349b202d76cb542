"""What setup.py wrote down about this build. Imports nothing more, so that `geocomm --version` answers at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BuildFacts:
    """How the installed native module was built."""

    torch: str
    """Minor version of the torch that it was built for."""
    cuda_kernels: bool
    why_no_cuda: str
    """Empty where it has the kernels, and in a build that did not write the reason down yet."""

    def __str__(self) -> str:
        reason = f" ({self.why_no_cuda})" if self.why_no_cuda else ""
        kernels = "with CUDA kernels" if self.cuda_kernels else f"without CUDA kernels{reason}"
        return f"built for torch {self.torch}, {kernels}"


def build_facts() -> BuildFacts | None:
    """None: nothing was built here."""
    try:
        from geocomm import _build_info
    except ImportError:
        return None
    return BuildFacts(
        torch=_build_info.TORCH_VERSION,
        cuda_kernels=getattr(_build_info, "CUDA", False),
        why_no_cuda=getattr(_build_info, "WHY_NO_CUDA", ""),
    )
