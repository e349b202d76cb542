"""How geocomm was installed: which native module there is for the torch that is here, and how to add an extra.

How to add one depends on where geocomm came from. Imports nothing heavy, so that `geocomm --version` answers at once.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from geocomm.core.bindings import Binding, TorchBuild, fitting_binding, installed_bindings, installed_torch


def install_command(extra: str, geocomm: Distribution | None = None) -> str:
    """The command that adds the packages of `extra` to this environment; `geocomm`: default the installed one.

    From a folder it installs geocomm once more, with the extra. Elsewhere it names the packages themselves.
    """
    if geocomm is None:
        try:
            geocomm = distribution("geocomm")
        except PackageNotFoundError:  # a source tree on PYTHONPATH
            return f"pip install what pyproject.toml of geocomm lists as {extra}"
    folder, editable = _source_folder(geocomm)
    if folder is None:
        return shlex.join(["pip", "install", *_requirements(geocomm, extra)])
    options = ["--no-build-isolation", *(["-e"] if editable else [])]
    return shlex.join(["pip", "install", *options, f"{folder}[{extra}]"])


def _source_folder(geocomm: Distribution) -> tuple[Path | None, bool]:
    """(folder that was installed from and is still there or None, whether editable), as pip noted it (PEP 610)."""
    note: dict[str, Any] = json.loads(geocomm.read_text("direct_url.json") or "{}")
    url = urlsplit(str(note.get("url", "")))
    if url.scheme != "file" or "dir_info" not in note:
        return None, False
    folder = Path(unquote(url.path))
    return (folder if (folder / "pyproject.toml").is_file() else None), note["dir_info"].get("editable", False)


def _requirements(geocomm: Distribution, extra: str) -> list[str]:
    """The requirements of `extra`, such as onnx<2,>=1.22."""
    marked = re.compile(rf"""(?P<requirement>[^;]+?)\s*;\s*extra == ["']{re.escape(extra)}["']""")
    found = [marked.fullmatch(line) for line in geocomm.requires or ()]
    return [match["requirement"] for match in found if match]


@dataclass(frozen=True)
class BuildFacts:
    """The native module that would be loaded beside the torch that is here."""

    torch: str
    """Minor version of torch."""
    cuda_kernels: bool
    why_no_cuda: str
    """Empty where it has the kernels."""

    def __str__(self) -> str:
        reason = f" ({self.why_no_cuda})" if self.why_no_cuda else ""
        kernels = "with CUDA kernels" if self.cuda_kernels else f"without CUDA kernels{reason}"
        return f"for torch {self.torch}, {kernels}"


def build_facts() -> BuildFacts | None:
    """None: there is no torch, or no native module for it."""
    torch, bindings = installed_torch(), installed_bindings()
    binding = fitting_binding(torch, bindings) if torch else None
    if torch is None or binding is None:
        return None
    return BuildFacts(
        ".".join(map(str, binding.torch)), binding.cuda is not None, _why_no_cuda(binding, torch, bindings)
    )


def _why_no_cuda(binding: Binding, torch: TorchBuild, bindings: Sequence[Binding]) -> str:
    if binding.cuda is not None:
        return ""
    if torch.cuda is None:
        return "torch is a CPU build"
    of_minor = [str(other.cuda) for other in bindings if other.torch == binding.torch and other.cuda is not None]
    if of_minor:
        return f"they are for CUDA {', '.join(of_minor)}, and torch is for CUDA {torch.cuda}"
    from geocomm._build_info import WHY_NO_CUDA

    return WHY_NO_CUDA
