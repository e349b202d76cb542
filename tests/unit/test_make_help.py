"""`make help` says something about every target that a person would call."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOR_OTHER_TARGETS = {
    "look-for-wan",
    "cpp-build",
    "cpp-run",
    "hostile-build",
    "matrix-tests",
    "ucx-came-later",
    "torch-asked",
}


def shown_lines() -> list[str]:
    command = ["make", "--no-print-directory", "help"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def test_help_lists_every_target_once() -> None:
    declared = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {name for line in declared for name in line.split()} - FOR_OTHER_TARGETS
    listed = [found[1] for line in shown_lines() if (found := re.match(r"  make (\S+) +\S", line))]
    assert sorted(listed) == sorted(targets)


def test_help_has_no_line_over_100_columns() -> None:
    assert [line for line in shown_lines() if len(line) > 100] == []


def test_simulate_puts_faults_back_only_where_somebody_asks() -> None:
    def command(*variables: str) -> str:
        make = ["make", "--no-print-directory", "-n", "simulate", *variables]
        return subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "--mutants" not in command()
    assert "--mutants" in command("MUTANTS=1")
