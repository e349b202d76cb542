"""Fetches what a wheel of geocomm is built against: headers and libraries of each torch of tools/tested_torch.txt.

    python tools/torch_headers.py build/torch

prints the folders for GEOCOMM_TORCHES; with --machine those of another architecture. What is there is not fetched
again. pip downloads the wheels of torch for this Python from its default index, whose builds are those for CUDA;
nothing is installed, and no torch is imported.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

TESTED = Path(__file__).with_name("tested_torch.txt")
LIBRARIES = {f"torch/lib/lib{name}.so" for name in ("c10", "c10_cuda", "torch_cpu", "torch_python")}


def is_needed(name: str) -> bool:
    """Whether a build reads this file of torch's wheel."""
    return name.startswith("torch/include/") or name == "torch/version.py" or name in LIBRARIES


def fetch(version: str, place: Path, machine: str) -> Path:
    """The folder of the torch package in `place`, which holds no more than a build reads."""
    folder = place / f"{version}-{sys.implementation.cache_tag}-{machine}"
    if (folder / "torch").is_dir():
        return folder / "torch"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        platform = f"manylinux_2_28_{machine}"
        only = ["--no-deps", "--only-binary", ":all:", "--platform", platform, "--dest", temporary, f"torch=={version}"]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", *only], check=True
        )
        (wheel,) = Path(temporary).glob("torch-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(temporary, filter(is_needed, archive.namelist()))
        (Path(temporary) / "torch").rename(folder / "torch")
    return folder / "torch"


def main() -> None:
    """Fetch, and print the folders as PATH has them."""
    parser = argparse.ArgumentParser(description="Fetch what a wheel of geocomm is built against.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--machine", default=os.uname().machine, help="x86_64 or aarch64 (default: this one's)")
    parser.add_argument("--torch", action="append", help="in place of all that were tested; may be given several times")
    arguments = parser.parse_args()
    versions = arguments.torch or TESTED.read_text().split()
    folders = [fetch(version, arguments.folder.resolve(), arguments.machine) for version in versions]
    print(os.pathsep.join(map(str, folders)))


if __name__ == "__main__":
    main()
