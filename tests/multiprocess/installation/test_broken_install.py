"""A geocomm that cannot work never breaks `import torch`, and says what is wrong when it is asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import torch

PACKAGE = Path(__file__).parents[3] / "geocomm"
PROGRAM = """
import sys
# An editable install would find in the source tree what the copy lacks.
sys.meta_path = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]
import torch
import torch.distributed as dist
import geocomm.core.errors
print("torch is there", geocomm.__file__)
try:
    dist.init_process_group("geocomm", store=dist.HashStore(), rank=0, world_size=1)
except geocomm.core.errors.GeocommError as error:
    print(type(error).__name__, error)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print("gloo works")
"""


def _with_garbage(package: Path) -> None:
    _put(package, f"torch{'.'.join(torch.__version__.split('.')[:2])}-cpu", b"\x7fELF but not really")


def _for_another_torch(package: Path) -> None:
    _put(package, "torch1.13-cpu", b"loading this would crash")


def _for_another_python(package: Path) -> None:
    _put(package, "torch2.13-cpu", b"loading this would crash", "_C.cpython-39-x86_64-linux-gnu.so")


def _put(package: Path, binding: str, data: bytes, name: str = f"_C{EXTENSION_SUFFIXES[0]}") -> None:
    folder = package / "_native" / binding
    folder.mkdir(parents=True)
    (folder / name).write_bytes(data)


def _never_built(package: Path) -> None:
    del package


@pytest.mark.parametrize(
    ("break_it", "mentions"),
    [
        (_never_built, ["InternalError", "no native module for this Python"]),
        (_for_another_python, ["InternalError", "no native module for this Python"]),
        pytest.param(_with_garbage, ["InternalError", "does not load"], marks=pytest.mark.slow),
        (_for_another_torch, ["VersionMismatchError", f"torch {torch.__version__}", "torch 1.13 CPU", "install"]),
    ],
)
def test_broken_install_spares_torch_and_explains_itself(
    tmp_path: Path, break_it: Callable[[Path], None], mentions: list[str]
) -> None:
    package = tmp_path / "geocomm"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "_build_info.py", "_bin", "_native"))
    break_it(package)
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, "program.py"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == f"torch is there {package / '__init__.py'}"
    for mention in mentions:
        assert mention in lines[1]
    assert lines[2] == "gloo works"
