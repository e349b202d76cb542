"""How geocomm was installed: what setup.py wrote down about this build, and how to add an extra.

No package index has geocomm, so that command depends on where it came from. Imports nothing heavy, so that
`geocomm --version` answers at once.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


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
