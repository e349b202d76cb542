"""The bindings of this installation to torch: one for each minor version, without and with CUDA kernels.

The C++ of torch.distributed changes with each minor version, so that a binding fits one. A wheel has all of them, a
build in the source tree the one for the torch that is there. They are `geocomm/_native/torch2.13-cpu/_C.*.so`,
`torch2.13-cuda13/` and so on. Imports nothing heavy, so that `geocomm --version` answers at once, and nothing that is
not Python's own, since setup.py uses it too.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Self

NATIVE = Path(__file__).parents[1] / "_native"
_FOLDER = re.compile(r"torch(?P<torch>\d+\.\d+)-(?:cpu|cuda(?P<cuda>\d+))")


@dataclass(frozen=True, order=True)
class Binding:
    """A native module, and what it was built for."""

    torch: tuple[int, int]
    """Minor version."""
    cuda: int | None
    """Major version of CUDA that its kernels need; None: it has no kernels, and fits every build of torch."""
    file: Path

    def __str__(self) -> str:
        return f"torch {self.torch[0]}.{self.torch[1]} {'CPU' if self.cuda is None else f'CUDA {self.cuda}'}"


def binding_folder(torch: tuple[int, int], cuda: int | None) -> str:
    """The name of a binding's folder; as the fields of `Binding`."""
    return f"torch{torch[0]}.{torch[1]}-{'cpu' if cuda is None else f'cuda{cuda}'}"


def built_machine() -> str:
    """The machine that is built for: this one, or that of _PYTHON_HOST_PLATFORM (linux-aarch64), as cross-builds of
    Python itself name it."""
    return sysconfig.get_platform().removeprefix("linux-")


def built_suffix() -> str:
    """How the file of a module ends that is built for this Python, there."""
    return sysconfig.get_config_var("EXT_SUFFIX").replace(os.uname().machine, built_machine())


@dataclass(frozen=True)
class TorchBuild:
    """A torch, as its files say: that of this environment, or one that geocomm is built for."""

    version: str
    cuda: str | None
    """Version of CUDA that it was built with."""

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """That of a folder of the package torch; None: it does not say which it is."""
        try:
            text = (folder / "version.py").read_text()
        except OSError:
            return None
        version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
        cuda = re.search(r"^cuda\b.*= '([^']+)'", text, re.MULTILINE)
        return cls(version[1], cuda[1] if cuda else None) if version else None

    @property
    def minor(self) -> tuple[int, int]:
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def cuda_major(self) -> int | None:
        return int(self.cuda.split(".")[0]) if self.cuda else None

    def __str__(self) -> str:
        return f"torch {self.version} ({f'for CUDA {self.cuda}' if self.cuda else 'a CPU build'})"


def torch_folder() -> Path | None:
    """The folder of the package that `import torch` would load; None: there is none."""
    found = find_spec("torch")
    return Path(found.origin).parent if found and found.origin else None


def installed_torch() -> TorchBuild | None:
    """What `import torch` would load; None: there is none, or one without a version."""
    folder = torch_folder()
    return TorchBuild.read(folder) if folder else None


def installed_bindings(folder: Path = NATIVE) -> list[Binding]:
    """Those for this Python, oldest torch first."""
    found: list[Binding] = []
    for place in folder.glob("torch*"):
        named = _FOLDER.fullmatch(place.name)
        file = next((file for suffix in EXTENSION_SUFFIXES if (file := place / f"_C{suffix}").is_file()), None)
        if named and file:
            major, minor = map(int, named["torch"].split("."))
            found.append(Binding((major, minor), int(named["cuda"]) if named["cuda"] else None, file))
    return sorted(found, key=lambda binding: (binding.torch, binding.cuda or 0))


def fitting_binding(torch: TorchBuild, bindings: Sequence[Binding]) -> Binding | None:
    """The binding to load beside this torch: with kernels, if there are any for its CUDA."""
    fits = [
        binding for binding in bindings if binding.torch == torch.minor and binding.cuda in (None, torch.cuda_major)
    ]
    return fits[-1] if fits else None


def why_none_fits(torch: TorchBuild, bindings: Sequence[Binding]) -> str:
    """What is wrong, and what to do, where fitting_binding() finds none."""
    if not bindings:
        return _not_built()
    of_minor = [binding for binding in bindings if binding.torch == torch.minor]
    have = ", ".join(map(str, of_minor or bindings))
    return (
        f"{torch} is installed, and this geocomm was built for {have}; install one of these, or another version of "
        "geocomm, or build it for the torch that is here: pip install --no-build-isolation --no-binary geocomm "
        "--force-reinstall --no-deps geocomm (in its source tree: make build)"
    )


def _not_built() -> str:
    """What is wrong, and what to do, where there is no binding at all."""
    package = NATIVE.parent
    installed = _installed_package()
    if (package.parent / "csrc").is_dir():
        elsewhere = f", or work in another folder to use the one in {installed}" if installed else ""
        return (
            f"Python has found geocomm in the source tree {package.parent}, where the native module is not built: run "
            f"`make build` there{elsewhere}"
        )
    return f"the geocomm in {package} has no native module for this Python: install a wheel of geocomm for it"


def _installed_package() -> Path | None:
    """The folder of a geocomm that was installed by pip, if that is another than this one."""
    for found in distributions(name="geocomm"):
        package = Path(str(found.locate_file("geocomm")))
        if package.is_dir() and package != NATIVE.parent:
            return package
    return None
