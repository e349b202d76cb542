"""Checks geocomm on the GPU of this machine: `make gpu-check PYTHON=python3`, with the python that has torch.

Builds the native module for that GPU alone, in the tree, runs tests/gpu, then `geocomm bench gpu`. Nothing is installed
and no network is used; what is missing is named first. The report is gpu-report.md. With --dry-run, which needs no GPU,
it builds for one architecture and lists the tests.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES = {
    "torch": "torch",
    "numpy": "numpy",
    "setuptools": "setuptools>=77",
    "cmake": "cmake>=3.25",
    "ninja": "ninja>=1.11",
    "typer": "typer>=0.15",
    "rich": "rich>=13",
    "cryptography": "cryptography>=44",
    "pydantic": "pydantic>=2.11",
    "xxhash": "xxhash>=3.5",
    "typing_extensions": "typing-extensions>=4.12",
    "pytest": "pytest>=8.4,<9.2",
    "pytest_timeout": "pytest-timeout>=2.4",
    "hypothesis": "hypothesis>=6.130",
}
"""What building, geocomm and its tests import, and what pip calls it."""


def missing() -> list[str]:
    """What is not here, each with what brings it."""
    programs = {"cmake", "ninja"}
    absent = [
        f"pip install '{requirement}'"
        for module, requirement in MODULES.items()
        if importlib.util.find_spec(module) is None and not (module in programs and shutil.which(module))
    ]
    if shutil.which("nvcc") is None:
        absent.append("nvcc 12.8 or later, of the major version of torch.version.cuda, on PATH")
    if not _compiles("#include <openssl/ssl.h>"):
        absent.append("OpenSSL 3 with its headers (libssl-dev), or OPENSSL_ROOT_DIR")
    return absent


def _compiles(source: str) -> bool:
    if "OPENSSL_ROOT_DIR" in os.environ:
        return True
    compiler = shutil.which("g++")
    command = [compiler or "g++", "-x", "c++", "-fsyntax-only", "-"]
    return compiler is not None and subprocess.run(command, input=source.encode(), capture_output=True).returncode == 0


def step(what: str, command: list[str], environment: dict[str, str]) -> bool:
    """Runs it, and says how long it took."""
    print(f"gpu-check: {what}", flush=True)
    begin = time.monotonic()
    status = subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=False).returncode
    print(f"gpu-check: {what}: {'ok' if status == 0 else 'FAILED'} after {time.monotonic() - begin:.0f} s", flush=True)
    return status == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="build for compute capability 9.0, and list the tests")
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-report.md", metavar="PATH.md")
    options = parser.parse_args()
    if absent := missing():
        sys.exit("gpu-check: this is missing:\n" + "\n".join(f"  {line}" for line in absent))
    import torch

    if torch.version.cuda is None:
        sys.exit(
            f"gpu-check: torch {torch.__version__} is a CPU build; name a python with another: make gpu-check PYTHON=…"
        )
    if not torch.cuda.is_available() and not options.dry_run:
        sys.exit("gpu-check: torch sees no GPU; --dry-run builds and lists the tests without one")
    capability = "90" if options.dry_run else "".join(map(str, torch.cuda.get_device_capability()))
    python = sys.executable
    built = step(
        f"building for compute capability {capability[:-1]}.{capability[-1]}",
        [python, "setup.py", "-q", "build_ext", "--inplace", "egg_info"],
        {"GEOCOMM_CUDA": "on", "GEOCOMM_CUDA_ARCHITECTURES": f"{capability}-real"},
    )
    if not built:
        sys.exit(1)
    here = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    pytest = [python, "-m", "pytest", "-q", "tests/gpu", *(["--collect-only"] if options.dry_run else [])]
    passed = step("tests/gpu", pytest, here)
    if options.dry_run:
        sys.exit(not passed)
    measured = step("geocomm bench gpu", [python, "-m", "geocomm", "bench", "gpu", "--out", str(options.out)], here)
    sys.exit(not (passed and measured))


if __name__ == "__main__":
    main()
