"""Facts of a torch for CMake and setup.py, read from its files: one for another Python or machine does not load here.

    python torch_build_facts.py [FOLDER]

prints, for CMake: minor version, pybind11 internals, Python's include folder, extension suffix, the folder. Default:
that of the torch that is installed.
"""

import re
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path


def installed_torch() -> Path | None:
    """The folder of the torch that this interpreter would import."""
    found = find_spec("torch")
    return Path(found.origin).parent if found and found.origin else None


def torch_versions(folder: Path) -> tuple[str, str | None]:
    """(version without the local part, CUDA version or None) of the torch in this folder."""
    text = (folder / "version.py").read_text()
    version = re.search(r"^__version__ = '([^'+]+)", text, re.MULTILINE)
    if version is None:
        sys.exit(f"{folder}/version.py does not say which torch it is")
    cuda = re.search(r"^cuda\b.*= '([^']+)'", text, re.MULTILINE)
    return version[1], cuda[1] if cuda else None


def minor_of(version: str) -> str:
    """2.13 of 2.13.0."""
    return ".".join(version.split(".")[:2])


def pybind11_internals(folder: Path) -> str:
    """Version of the pybind11 internals that this torch registers with the interpreter."""
    known = re.search(rb"__pybind11_internals_v(\d+)", (folder / "lib/libtorch_python.so").read_bytes())
    if known is None:
        sys.exit(f"no pybind11 internals found in {folder}; this torch is not one geocomm knows")
    return known[1].decode()


if __name__ == "__main__":
    torch = Path(sys.argv[1]) if sys.argv[1:] else installed_torch()
    if torch is None:
        sys.exit("torch is not installed")
    python = sysconfig.get_path("include"), sysconfig.get_config_var("EXT_SUFFIX")
    print(minor_of(torch_versions(torch)[0]), pybind11_internals(torch), *python, torch, sep=";")
