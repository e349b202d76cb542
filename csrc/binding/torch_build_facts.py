"""Facts of a torch for CMake, read from its files: one for another Python or machine does not load here.

    python torch_build_facts.py [FOLDER]

prints, for CMake: minor version, pybind11 internals, Python's include folder, extension suffix, the folder. Default:
that of the torch that is installed.
"""

import re
import sys
import sysconfig
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from geocomm.core.bindings import TorchBuild, built_suffix, torch_folder  # of this tree


def pybind11_internals(folder: Path) -> str:
    """Version of the pybind11 internals that this torch registers with the interpreter."""
    known = re.search(rb"__pybind11_internals_v(\d+)", (folder / "lib/libtorch_python.so").read_bytes())
    if known is None:
        sys.exit(f"no pybind11 internals found in {folder}; this torch is not one geocomm knows")
    return known[1].decode()


def main() -> None:
    """Print them."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else torch_folder()
    torch = TorchBuild.read(folder) if folder else None
    if folder is None or torch is None:
        sys.exit(f"there is no torch in {folder}" if folder else "torch is not installed")
    minor = ".".join(map(str, torch.minor))
    print(minor, pybind11_internals(folder), sysconfig.get_path("include"), built_suffix(), folder, sep=";")


if __name__ == "__main__":
    main()
