"""Builds the native parts (bindings to torch, programs behind commands) with CMake + ninja; the rest: pyproject.toml.

For the torch that is here, or, as `make wheel` does, for each torch whose folder GEOCOMM_TORCHES names. For another
machine, where _PYTHON_HOST_PLATFORM (of Python), CMAKE_TOOLCHAIN_FILE (of CMake) and STRIP name its.
"""

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
sys.path.insert(0, str(ROOT))
from geocomm.core.bindings import TorchBuild, binding_folder, built_machine, built_suffix, torch_folder  # noqa: E402

PROGRAMS = {"wan_emulator": "tools/emulator", "link_bench": "tools/link_bench"}
"""Behind commands, and where they are built."""
LEAST_CUDA = (12, 8)
"""The first whose nvcc knows all of CMAKE_CUDA_ARCHITECTURES."""


def torches() -> dict[Path, TorchBuild]:
    """What to build for, by the folders of the torch packages."""
    named = os.environ.get("GEOCOMM_TORCHES")
    folders = [Path(folder) for folder in named.split(os.pathsep)] if named else [torch_folder()]
    found: dict[Path, TorchBuild] = {}
    for folder in folders:
        if folder is None:
            sys.exit(
                "geocomm is built against an installed torch: install torch first, then build with --no-build-isolation"
            )
        torch = TorchBuild.read(folder)
        if torch is None:
            sys.exit(f"{folder}/version.py does not say which torch it is")
        found[folder] = torch
    return found


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
    elif built_machine() != os.uname().machine:  # nvcc's libraries are of this machine
        why = f"they are not cross-built, and this is for {built_machine()}"
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
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(target.name + ".new")
    shutil.copy2(source, beside)
    beside.replace(target)


class CMakeBuild(build_ext):
    """One CMake build for every Python; incremental."""

    def run(self) -> None:
        folders = torches()
        builds = list(folders.values())
        if len({torch.cuda_major for torch in builds}) > 1:
            sys.exit(f"GEOCOMM_TORCHES names builds for several CUDA versions: {', '.join(map(str, builds))}")
        why_not = why_no_cuda(builds[0].cuda)
        of_many = "GEOCOMM_TORCHES" in os.environ
        # Whoever has one torch needs one binding; a wheel goes to CPU builds of torch, too.
        variants = [*(["cpu"] if why_not or of_many else []), *([] if why_not else ["cuda"])]
        kernels = f"without CUDA kernels: {why_not}" if why_not else "with CUDA kernels"
        print(f"geocomm: building for torch {', '.join(one.version.split('+')[0] for one in builds)}, {kernels}")
        # CMake keeps to one compiler in a folder.
        build_dir = ROOT / "build" / (f"wheel-{built_machine()}" if of_many else "native")
        if build_dir.is_symlink():  # of an older version
            build_dir.unlink()
        cmake = build_tool("cmake")
        configure = [cmake, "-S", ROOT, "-B", build_dir, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={build_tool('ninja')}"]
        configure += ["-DGEOCOMM_BINDING=ON", "-DGEOCOMM_TESTS=OFF", f"-DGEOCOMM_PYTHON={sys.executable}"]
        configure += [f"-DGEOCOMM_TORCHES={';'.join(map(str, folders))}", f"-DGEOCOMM_VARIANTS={';'.join(variants)}"]
        configure += [f"-DGEOCOMM_CUDA={'OFF' if why_not else 'ON'}"]
        if architectures := os.environ.get("GEOCOMM_CUDA_ARCHITECTURES"):  # in place of all that are supported
            configure += [f"-DGEOCOMM_CUDA_ARCHITECTURES={architectures}"]
        if unity := os.environ.get("GEOCOMM_UNITY"):  # OFF: a change compiles one file, and a whole build twice as much
            configure += [f"-DGEOCOMM_UNITY={unity}"]
        subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
        build = [sys.executable, ROOT / "tools/build_progress.py", "build", cmake, "--build", build_dir]
        sys.stdout.flush()  # what was printed comes before what the program prints
        targets = ["geocomm_bindings", "geocomm_plugins", *PROGRAMS]
        if subprocess.run([*build, "--target", *targets], check=False).returncode != 0:
            sys.exit("geocomm: the native part does not compile; the compiler's messages are above")

        package = (ROOT if self.inplace else Path(self.build_lib)) / "geocomm"
        built = {build_dir / folder / program: package / "_bin" / program for program, folder in PROGRAMS.items()}
        plugin = build_dir / "csrc/transport/rdma/ucx/libgeocomm_ucx.so"
        if plugin.exists():  # built where UCX's headers are
            built[plugin] = package / "_bin" / plugin.name
        module = "_C" + built_suffix()
        if not self.inplace:  # a wheel is of this build alone; the tree keeps what it has for other torches
            shutil.rmtree(package / "_native", ignore_errors=True)
        for torch in builds:
            minor = ".".join(map(str, torch.minor))
            # Perhaps of a variant that is not built now.
            for old in (package / "_native").glob(f"torch{minor}-*/{module}"):
                old.unlink()
            for variant in variants:
                source = build_dir / "bindings" / f"torch{minor}-{variant}" / module
                require_shared_libstdcxx(source)
                name = binding_folder(torch.minor, torch.cuda_major if variant == "cuda" else None)
                built[source] = package / "_native" / name / module
        for source, target in built.items():
            replace_file(source, target)
            if not self.inplace:  # wheels go without debug information
                subprocess.run([os.environ.get("STRIP", "strip"), "--strip-unneeded", target], check=True)
        (package / "_build_info.py").write_text(f'"""Written by setup.py."""\n\nWHY_NO_CUDA = {why_not!r}\n')


def require_shared_libstdcxx(module: Path) -> None:
    """Beside torch's own libstdc++ a static one would end the process at the first exception."""
    if b"libstdc++.so" not in module.read_bytes():
        sys.exit(
            "geocomm: the compiler has linked a static libstdc++ into the native module, beside which torch's "
            "own would end the process at the first exception. Unset LDFLAGS and LIBRARY_PATH, or install "
            "the shared one (Debian, Ubuntu: libstdc++6, and libstdc++-dev of g++'s version), and build again"
        )


def torch_requirement() -> str:
    """For the metadata: the torches that there will be a binding for."""
    if ("GEOCOMM_TORCHES" not in os.environ and torch_folder() is None) or "sdist" in sys.argv:
        return "torch>=2.11"
    minors = sorted(torch.minor for torch in torches().values())
    (major, oldest), (_, newest) = minors[0], minors[-1]
    return f"torch>={major}.{oldest},<{major}.{newest + 1}"


def repository() -> str | None:
    """The address of the repository whose workflow builds this, if one does: the project has no other."""
    name = os.environ.get("GITHUB_REPOSITORY")
    return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}" if name else None


def addresses() -> dict[str, str]:
    """For the metadata."""
    if not (source := repository()):
        return {}
    pages = {"Documentation": "blob/main/docs/index.md", "Changelog": "blob/main/CHANGELOG.md", "Issues": "issues"}
    return {"Source": source} | {name: f"{source}/{page}" for name, page in pages.items()}


def description() -> str:
    """For the metadata: the README, whose links lead to the repository, since no other file is beside that page."""
    text, source = (ROOT / "README.md").read_text(), repository()
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({source}/blob/main/", text) if source else text


REQUIREMENTS = ["numpy", "typer>=0.19", "rich>=13", "cryptography>=44", "pydantic>=2.11", "xxhash>=3.5"]
REQUIREMENTS += ["typing-extensions>=4.12"]

setup(
    install_requires=[torch_requirement(), *REQUIREMENTS],
    project_urls=addresses(),
    long_description=description(),
    long_description_content_type="text/markdown",
    ext_modules=[Extension("geocomm._C", [])],
    cmdclass={"build_ext": CMakeBuild},
)
