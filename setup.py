"""Builds the native parts (geocomm._C, the programs behind commands) with CMake + ninja; the rest: pyproject.toml."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
PROGRAMS = {"wan_emulator": "csrc/emulator", "link_bench": "csrc/link_bench"}
"""Behind commands, and where they are built."""
LEAST_CUDA = (12, 8)
"""The first whose nvcc knows all of CMAKE_CUDA_ARCHITECTURES."""
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "geocomm/_version.py").read_text())[1]


def torch_build() -> tuple[str, str | None]:
    """(version without the local part, CUDA version or None) of the torch that is built for."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # plugins have no part in the build
    try:
        import torch
    except ImportError:
        sys.exit(
            "geocomm is built against an installed torch: install torch first, then build with --no-build-isolation"
        )
    return torch.__version__.split("+")[0], torch.version.cuda


def nvcc_cuda() -> str | None:
    """CUDA version of the nvcc on PATH."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return None
    told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"release (\d+\.\d+)", told)[1]


def why_no_cuda(torch_cuda: str | None) -> str:
    """Why the CUDA kernels are left out, by GEOCOMM_CUDA=auto|on|off and what is here; "": they are built."""
    choice = os.environ.get("GEOCOMM_CUDA", "auto")
    if choice not in ("auto", "on", "off"):
        sys.exit(f"GEOCOMM_CUDA is {choice!r}; it must be auto, on or off")
    if choice == "off":
        return "built with GEOCOMM_CUDA=off"
    nvcc = nvcc_cuda()
    if torch_cuda is None:
        why = "torch is a CPU build"
    elif nvcc is None:
        why = f"no nvcc on PATH; torch needs the one of CUDA {torch_cuda}"
    elif nvcc.split(".")[0] != torch_cuda.split(".")[0]:  # torch's headers are for the runtime of its major version
        why = f"nvcc is of CUDA {nvcc}, torch of CUDA {torch_cuda}"
    elif tuple(map(int, nvcc.split("."))) < LEAST_CUDA:
        why = f"nvcc is of CUDA {nvcc}, which is older than {'.'.join(map(str, LEAST_CUDA))}"
    else:
        return ""
    if choice == "on":
        sys.exit(f"GEOCOMM_CUDA=on, but {why}; mend it, or use GEOCOMM_CUDA=auto to build without CUDA kernels")
    return why


def build_tool(name: str) -> str:
    """Path of cmake or ninja: the one installed beside this interpreter (pip's), else the system's."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=path)
    if not found:
        sys.exit(f"geocomm's build needs {name}: pip install {name}")
    return found


def replace_file(source: Path, target: Path) -> None:
    """Copy beside and rename: processes that run the old file keep it."""
    beside = target.with_name(target.name + ".new")
    shutil.copy2(source, beside)
    beside.replace(target)


class CMakeBuild(build_ext):
    """One CMake build per Python and torch minor version; incremental. The newest is build/native."""

    def run(self) -> None:
        torch_version, torch_cuda = torch_build()
        minor = ".".join(torch_version.split(".")[:2])
        why_not = why_no_cuda(torch_cuda)
        kernels = f"without CUDA kernels: {why_not}" if why_not else "with CUDA kernels"
        print(f"geocomm: building for torch {torch_version}, {kernels}")
        build_dir = ROOT / "build" / f"py{sys.version_info.major}{sys.version_info.minor}-torch{minor}"
        cmake = build_tool("cmake")
        configure = [cmake, "-S", ROOT, "-B", build_dir, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={build_tool('ninja')}"]
        configure += ["-DGEOCOMM_BINDING=ON", "-DGEOCOMM_TESTS=OFF", f"-DGEOCOMM_PYTHON={sys.executable}"]
        configure += [f"-DGEOCOMM_CUDA={'OFF' if why_not else 'ON'}"]
        if architectures := os.environ.get("GEOCOMM_CUDA_ARCHITECTURES"):  # in place of all that are supported
            configure += [f"-DGEOCOMM_CUDA_ARCHITECTURES={architectures}"]
        if unity := os.environ.get("GEOCOMM_UNITY"):  # OFF: a change compiles one file, and a whole build twice as much
            configure += [f"-DGEOCOMM_UNITY={unity}"]
        subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
        build = [sys.executable, ROOT / "tools/build_progress.py", "build", cmake, "--build", build_dir]
        sys.stdout.flush()  # what was printed comes before what the program prints
        if subprocess.run([*build, "--target", "_C", "geocomm_plugins", *PROGRAMS], check=False).returncode != 0:
            sys.exit("geocomm: the native part does not compile; the compiler's messages are above")

        newest = ROOT / "build/native"
        newest.unlink(missing_ok=True)
        newest.symlink_to(build_dir.name)

        package = (ROOT if self.inplace else Path(self.build_lib)) / "geocomm"
        (package / "_bin").mkdir(parents=True, exist_ok=True)
        (module,) = (build_dir / "csrc/binding").glob("_C.*.so")
        if b"libstdc++.so" not in module.read_bytes():
            sys.exit(
                "geocomm: the compiler has linked a static libstdc++ into the native module, beside which torch's "
                "own would end the process at the first exception. Unset LDFLAGS and LIBRARY_PATH, or install "
                "the shared one (Debian, Ubuntu: libstdc++6, and libstdc++-dev of g++'s version), and build again"
            )
        built = {module: package / module.name}
        built |= {build_dir / folder / program: package / "_bin" / program for program, folder in PROGRAMS.items()}
        plugin = build_dir / "csrc/transport/rdma/ucx/libgeocomm_ucx.so"
        if plugin.exists():  # built where UCX's headers are
            built[plugin] = package / "_bin" / plugin.name
        for source, target in built.items():
            replace_file(source, target)
            if not self.inplace:  # wheels go without debug information
                subprocess.run(["strip", "--strip-unneeded", target], check=True)
        # Read before the module is loaded: one built for another torch would crash rather than complain.
        facts = {"TORCH_VERSION": minor, "CUDA": not why_not, "WHY_NO_CUDA": why_not}
        lines = ['"""Written by setup.py."""', "", *(f"{name} = {value!r}" for name, value in facts.items())]
        (package / "_build_info.py").write_text("\n".join(lines) + "\n")


def metadata() -> dict[str, object]:
    """Version (a wheel: 0.3.0+torch2.13.cpu, 0.3.0+torch2.11.cu130) and requirements, by the torch that is there."""
    if "sdist" in sys.argv:
        version, torch = VERSION, "torch>=2.11"
    else:
        torch_version, torch_cuda = torch_build()
        minor = ".".join(torch_version.split(".")[:2])
        variant = f"cu{torch_cuda.replace('.', '')}" if torch_cuda else "cpu"
        version, torch = f"{VERSION}+torch{minor}.{variant}", f"torch=={minor}.*"
    others = ["numpy", "typer>=0.19", "rich>=13", "cryptography>=44", "pydantic>=2.11", "xxhash>=3.5"]
    others += ["typing-extensions>=4.12"]
    return {"version": version, "install_requires": [torch, *others]}


setup(**metadata(), ext_modules=[Extension("geocomm._C", [])], cmdclass={"build_ext": CMakeBuild})
