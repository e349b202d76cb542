"""The packages: what the sdist holds, and a wheel that works in a clean environment outside of the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

import geocomm

pytestmark = [
    pytest.mark.xdist_group("wheel"),  # they build in one folder
    pytest.mark.timeout(1600),  # of all that is compiled, beside other tests
]

ROOT = Path(__file__).resolve().parents[3]

# Run by torch.distributed.run as one rank of two, each its own site; geocomm is never imported for the backend.
RANK_PROGRAM = """
import os
import torch
import torch.distributed as dist

os.environ["GEOCOMM_SITE"] = "ab"[int(os.environ["RANK"])]
dist.init_process_group("geocomm")
values = torch.full((1 << 20,), float(dist.get_rank() + 1))
dist.all_reduce(values)
assert torch.equal(values, torch.full_like(values, 3.0))
import geocomm
from geocomm.core.native import native
with open(f"rank-{dist.get_rank()}", "w") as result:
    print(dist.get_backend(), geocomm.__file__, native().__file__, sep="\\n", file=result)
dist.destroy_process_group()
"""


def run(*command: object, cwd: Path) -> str:
    """Standard output of a command that must succeed, with the build's tools first on PATH."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GEOCOMM_", "PYTHON"))}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


def build_wheel(source: Path, folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source, cwd=folder)
    (wheel,) = folder.glob("geocomm-*.whl")
    return wheel


def install(wheel: Path, venv: Path) -> Path:
    """Python of a new environment with the wheel, in which torch is found in the environment that runs this test."""
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv.parent)
    python = venv / "bin/python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=venv).strip())
    # Folders named in a .pth are searched last, and their own .pth files (an editable geocomm) are not read.
    borrowed = dict.fromkeys([sysconfig.get_path("purelib"), str(Path(torch.__file__).parents[1])])
    (packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "-q", "--no-deps", "--no-index", wheel, cwd=venv.parent)
    return python


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, out of the build folder that is there already."""
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "setup.py", "-q", "sdist", "-d", folder, cwd=ROOT)
    (archive,) = folder.glob("geocomm-*.tar.gz")
    return archive


@pytest.fixture
def unpacked(wheel: Path, tmp_path: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def assert_two_sites_reduce(python: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "rank_program.py").write_text(RANK_PROGRAM)
    launch = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "rank_program.py"]
    run(*launch, cwd=folder)
    for rank in range(2):
        backend, package, module = (folder / f"rank-{rank}").read_text().split()
        assert backend == "geocomm"
        assert Path(package).is_relative_to(python.parents[1])
        assert Path(module).is_relative_to(python.parents[1])


@pytest.mark.slow  # .github/workflows/ci.yml does it for every torch and Python
@pytest.mark.timeout(900)
def test_wheel_in_a_clean_environment_reduces_between_sites(wheel: Path, tmp_path: Path) -> None:
    assert_two_sites_reduce(install(wheel, tmp_path / "venv"), tmp_path / "elsewhere")


def test_wheel_has_a_public_version_and_asks_for_the_torch_that_it_was_built_for(wheel: Path, unpacked: Path) -> None:
    assert wheel.name.split("-")[1] == geocomm.__version__
    (metadata,) = unpacked.glob("geocomm-*.dist-info/METADATA")
    major, minor = map(int, torch.__version__.split(".")[:2])
    assert f"Requires-Dist: torch<{major}.{minor + 1},>={major}.{minor}" in metadata.read_text().splitlines()


def test_wheel_holds_the_typed_package_and_no_source(unpacked: Path) -> None:
    names = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    assert {"geocomm/py.typed", "geocomm/_C.pyi", "geocomm/_bin/wan_emulator", "geocomm/_build_info.py"} <= names
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "geocomm").rglob("*.py")}
    assert modules <= names
    assert not [name for name in names if name.startswith(("csrc/", "tests/", "benchmarks/", "tools/"))]


def test_wheel_binaries_record_no_path_and_are_stripped(unpacked: Path) -> None:
    (module,) = (unpacked / "geocomm/_native").rglob("_C.*.so")
    for binary in (module, unpacked / "geocomm/_bin/wan_emulator"):
        dynamic = run("readelf", "-d", binary, cwd=unpacked)
        assert "NEEDED" in dynamic
        assert "RUNPATH" not in dynamic
        assert "RPATH" not in dynamic
        assert ".debug_info" not in run("readelf", "-S", "-W", binary, cwd=unpacked)


def test_module_exports_nothing_that_another_copy_of_the_core_could_be_bound_to(unpacked: Path) -> None:
    (module,) = (unpacked / "geocomm/_native").rglob("_C.*.so")
    exported = run("nm", "--dynamic", "--defined-only", "--demangle", module, cwd=unpacked).splitlines()
    assert [line for line in exported if "PyInit__C" in line]
    assert not [line for line in exported if "geocomm" in line]


def names_in(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_sdist_holds_what_a_build_needs(sdist: Path) -> None:
    names = names_in(sdist)
    needed = {
        "CMakeLists.txt",
        "setup.py",
        "pyproject.toml",
        "Makefile",
        "tools/setup_env.sh",
        "tests/cpp/CMakeLists.txt",
    }
    for folder in ("csrc", "tools"):
        needed |= {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*") if _is_source(path)}
    needed |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "geocomm").rglob("*.py*") if _is_source(path)}
    assert needed - names == set()
    assert not [name for name in names if name.endswith((".so", ".pyc")) or name == "geocomm/_build_info.py"]


def test_sdist_holds_every_tracked_file_but_those_of_the_host_of_the_repository(sdist: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this tree is no git repository, which tells which files it has")
    tracked = run("git", "ls-files", cwd=ROOT).splitlines()
    of_the_host = (".git", ".ci/", ".pre-commit-config.yaml")
    needed = {name for name in tracked if not name.startswith(of_the_host) and (ROOT / name).exists()}
    assert needed - names_in(sdist) == set()


@pytest.mark.slow  # compiles everything again
@pytest.mark.timeout(1800)
def test_sdist_builds_a_wheel_that_reduces_between_sites(sdist: Path, tmp_path: Path) -> None:
    built = build_wheel(sdist, tmp_path)
    assert_two_sites_reduce(install(built, tmp_path / "venv"), tmp_path / "elsewhere")


def _is_source(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc" and path.name != "_build_info.py"
