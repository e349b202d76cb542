"""Commands where torch is not installed: a line that says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from geocomm.cli.main import main
main()
"""


@pytest.mark.parametrize("command", ["doctor", "doctor --json", "bench codec"])
def test_command_that_needs_torch_says_how_to_install_it(command: str) -> None:
    arguments = command.split()
    done = subprocess.run([sys.executable, "-c", WITHOUT, *arguments], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line == (
        f"geocomm {arguments[0]}: torch is not installed for {sys.executable}: {sys.executable} -m pip install torch"
    )


def test_commands_that_do_not_need_torch_work_without_it(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, "why", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "has no telemetry" in done.stderr
