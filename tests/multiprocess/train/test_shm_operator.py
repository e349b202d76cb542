"""Builds of DeepSpeed's operator that are killed, or run side by side: the next one ends, and says that it waits.

All but one test have torch compile a small library under the same guard, with a compiler that waits at a gate.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.train_ranks import SMALL_RUN

BUILD = """
import sys
from pathlib import Path

from torch.utils import cpp_extension

from geocomm.core import patience
from geocomm.train.loop.shm_operator import build_guard

patience.FIRST_WORD_S = 1.0
folder = Path(sys.argv[1])
with build_guard(folder, lambda line: print(line, flush=True)):
    cpp_extension.load("small", [str(folder / "small.cc")], build_directory=str(folder), is_python_module=False)
print("loaded", flush=True)
"""
# A compiler that answers questions at once, and compiles once something has come through the gate.
COMPILER = """#!/bin/bash
case " $* " in
*" -c "*)
  echo $$ > "$FOLDER/started" && mv "$FOLDER/started" "$FOLDER/compiling"
  read -r line < "$FOLDER/gate"
  ;;
esac
exec c++ "$@"
"""


@dataclass(frozen=True)
class Folder:
    """A folder to build in."""

    path: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def lock(self) -> Path:
        """Torch's."""
        return self.path / "lock"

    def start(self, *, gated: bool) -> subprocess.Popen[str]:
        """Build in a process of a session of its own; `gated`: it compiles only once the gate is open."""
        compiler = str(self.path / "compiler") if gated else "c++"
        process = subprocess.Popen(
            [sys.executable, "-c", BUILD, str(self.path)],
            env=os.environ | {"CXX": compiler, "FOLDER": str(self.path)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def start_to_compile(self) -> subprocess.Popen[str]:
        """A gated build whose compiler stands at the gate."""
        process = self.start(gated=True)
        while not (self.path / "compiling").exists():
            assert process.poll() is None, "the build ended before it compiled anything"
            time.sleep(0.02)
        return process

    def kill_compiler(self) -> None:
        """And all else that ninja started for this step; it may have ended with ninja."""
        number = int((self.path / "compiling").read_text())
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            if str(self.path) in Path(f"/proc/{number}/cmdline").read_text():  # else the number is another's by now
                os.killpg(os.getpgid(number), signal.SIGKILL)

    def open_gate(self) -> None:
        """For one compiler, which has to be there."""
        (self.path / "gate").write_text("go on\n")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    (tmp_path / "small.cc").write_text('extern "C" int small() { return 1; }\n')
    (tmp_path / "compiler").write_text(COMPILER)
    (tmp_path / "compiler").chmod(0o755)
    os.mkfifo(tmp_path / "gate")
    made = Folder(tmp_path)
    yield made
    for process in made.started:
        process.kill()
    if (tmp_path / "compiling").exists():
        made.kill_compiler()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_lock_of_a_killed_build_is_removed(folder: Folder, number: signal.Signals) -> None:
    killed = folder.start_to_compile()
    os.killpg(killed.pid, number)
    folder.kill_compiler()
    killed.communicate()
    assert folder.lock.exists()
    again = folder.start(gated=False)
    out, _ = again.communicate(timeout=250)
    assert again.returncode == 0
    assert out.splitlines()[-1] == "loaded"
    assert not folder.lock.exists()


@pytest.mark.slow
def test_two_builds_at_a_time_take_turns(folder: Folder) -> None:
    first = folder.start_to_compile()
    second = folder.start(gated=False)
    assert first_line(second).startswith("waiting for DeepSpeed's operator to be compiled in ")
    assert folder.lock.exists()
    folder.open_gate()
    assert first.communicate(timeout=250)[0].endswith("loaded\n")
    assert second.communicate(timeout=250)[0].endswith("loaded\n")
    assert (first.returncode, second.returncode) == (0, 0)


def test_compiler_that_fails_is_an_error_of_this_build_only(folder: Folder) -> None:
    source = folder.path / "small.cc"
    good = source.read_text()
    source.write_text("no C++ at all\n")
    failed = folder.start(gated=False)
    failed.communicate(timeout=250)
    assert failed.returncode != 0
    source.write_text(good)
    again = folder.start(gated=False)
    assert again.communicate(timeout=250)[0].endswith("loaded\n")


@pytest.mark.slow
def test_training_passes_the_lock_of_a_killed_build(tmp_path: Path) -> None:
    """The real operator in a folder of its own; it is compiled first where `make build` has not done that."""
    pytest.importorskip("deepspeed")
    pytest.importorskip("transformers")
    subprocess.run([sys.executable, "-m", "geocomm.train.loop.shm_operator"], check=True, timeout=280)
    operator = tmp_path / "extensions/deepspeed_shm_comm"
    shutil.copytree(Path(os.environ["TORCH_EXTENSIONS_DIR"]) / operator.name, operator)
    assert (operator / "deepspeed_shm_comm.so").is_file()
    (operator / "lock").touch()
    settings = [*SMALL_RUN, f"output_dir={tmp_path / 'run'}", f"data.cache_dir={tmp_path / 'tokens'}"]
    settings += ["training.steps=1", "evaluation.at_end=false"]
    done = subprocess.run(
        [sys.executable, "-m", "geocomm.train", *(part for setting in settings for part in ("--set", setting))],
        env=os.environ | {"TORCH_EXTENSIONS_DIR": str(operator.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert not (operator / "lock").exists()


def test_training_does_without_a_compiler_and_says_so(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    pytest.importorskip("transformers")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "uname", "ldconfig"):
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    settings = [*SMALL_RUN, f"output_dir={tmp_path / 'run'}", f"data.cache_dir={tmp_path / 'tokens'}"]
    settings += ["training.steps=1", "evaluation.at_end=false"]
    done = subprocess.run(
        [sys.executable, "-m", "geocomm.train", *(part for setting in settings for part in ("--set", setting))],
        env=os.environ | {"PATH": str(programs), "CXX": "no-such-compiler", "TORCH_EXTENSIONS_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert "geocomm train: no-such-compiler is not here: ranks of one machine reduce without" in done.stderr
    assert not list(tmp_path.rglob("*.so"))
