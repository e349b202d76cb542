"""tools/build_progress.py over real ninja builds."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools/build_progress.py"
NINJA = Path(sys.executable).parent / "ninja"


def write_rules(folder: Path, *commands: str) -> None:
    lines = ["rule run", "  command = $how"]
    for number, command in enumerate(commands):
        lines += [f"build step{number}: run", f"  how = {command}"]
    (folder / "build.ninja").write_text("\n".join(lines) + "\n")


def run_ninja(folder: Path, *options: str, every_s: float = 0.2) -> list[str]:
    return [sys.executable, str(TOOL), "--every", f"{every_s}", "build", str(NINJA), "-C", str(folder), *options]


def test_step_that_takes_long_is_reported_while_it_runs(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    write_rules(tmp_path, f"read line < {gate}")
    with subprocess.Popen(run_ninja(tmp_path), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline(), process.stdout.readline()]
        gate.write_text("go on\n")
        rest = process.stdout.read()
    assert process.returncode == 0
    assert sum(re.fullmatch(r"build: .+ after \d+ s\n", line) is not None for line in lines) >= 2, lines
    assert "build: 1 of 1 steps" in rest


def test_compiler_message_and_status_are_passed_on(tmp_path: Path) -> None:
    write_rules(tmp_path, "echo gate.cc:7: error: no such thing; exit 3")
    done = subprocess.run(run_ninja(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "gate.cc:7: error: no such thing\n" in done.stdout
    assert "@geocomm" not in done.stdout


def test_build_without_work_is_silent(tmp_path: Path) -> None:
    write_rules(tmp_path, "touch step0")
    subprocess.run(run_ninja(tmp_path), check=True, capture_output=True)
    done = subprocess.run(run_ninja(tmp_path, "--quiet", every_s=60), capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_terminal_gets_one_line_that_changes(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    write_rules(tmp_path, f"read line < {gate}")
    ours, theirs = pty.openpty()
    is_open = False
    with subprocess.Popen(run_ninja(tmp_path), stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                received = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not received:
                break
            shown += received
            if not is_open and shown.count(b"\r\x1b[Kbuild: ") >= 3:
                gate.write_text("go\n")
                is_open = True
    os.close(ours)
    assert process.returncode == 0
    drawn = [line for line in shown.split(b"\r\x1b[K") if line.startswith(b"build: ")]
    assert len(drawn) >= 2
    assert all(b"\n" not in line.rstrip(b"\r\n") for line in drawn)
