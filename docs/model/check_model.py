"""Checks link.pml: every configuration without a counterexample, every mistake on purpose with one.

python3 docs/model/check_model.py [--only NAME ...] [--mistakes]. Needs spin and a C compiler. Exit status: 0; 1 where a
check came out otherwise than it should, 2 where it could not be made.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).resolve().parent / "link.pml"
MEMORY_LIMIT_MB = 4000


@dataclass(frozen=True)
class Check:
    """One run of spin: what is defined (D: who dials), and whether a mistake must show."""

    name: str
    defines: str
    mistake: bool = False
    cycles: bool = False
    """Look for runs without an end instead of bad states."""


def _for_both(name: str, defines: str, **kind: bool) -> list[Check]:
    return [Check(f"{name}, {side} dials", f"D={side} {defines}", **kind) for side in ("S", "R")]


CHECKS = [
    *_for_both("1 loss of control", "CONTROL_LOSSES=1 DATA_LOSSES=0"),
    *_for_both("1 loss of data", "CONTROL_LOSSES=0 DATA_LOSSES=1"),
    *_for_both("from the first dial, 1 loss of each, 1 stream", "DIAL_FIRST CONTROL_LOSSES=1 DATA_LOSSES=1 STREAMS=1"),
    *_for_both("S restarts, 1 loss of each, 1 stream", "RESTART=S CONTROL_LOSSES=1 DATA_LOSSES=1 STREAMS=1"),
    *_for_both("R restarts, 1 loss of each, 1 stream", "RESTART=R CONTROL_LOSSES=1 DATA_LOSSES=1 STREAMS=1"),
    Check("no endless run, 1 loss of control", "CONTROL_LOSSES=1 DATA_LOSSES=0", cycles=True),
    Check("no endless run, 1 loss of data", "CONTROL_LOSSES=0 DATA_LOSSES=1", cycles=True),
    Check("no counts in Hello, 2 losses of control", "COUNTS_IN_HELLO=0 CONTROL_LOSSES=2 DATA_LOSSES=0"),
    Check("2 messages in flight, 1 loss of control", "CONTROL_LOSSES=1 DATA_LOSSES=0 IN_FLIGHT=2"),
    Check("4 segments, span 3, 1 loss of data", "CONTROL_LOSSES=0 DATA_LOSSES=1 SEGMENTS=4 WINDOW=3"),
    Check("1 loss of data, 1 copy sent early", "CONTROL_LOSSES=0 DATA_LOSSES=1 DUPLICATES=1"),
    *_for_both("1 loss of control, 2 of data, 1 stream", "CONTROL_LOSSES=1 DATA_LOSSES=2 STREAMS=1"),
    *_for_both("3 losses of control", "CONTROL_LOSSES=3 DATA_LOSSES=0"),
    Check("1 loss of each", "CONTROL_LOSSES=1 DATA_LOSSES=1"),
    Check("2 losses of data", "CONTROL_LOSSES=0 DATA_LOSSES=2"),
]

MISTAKES = [
    Check(name, f"MUTATE_{mutation} {defines}", mistake=True)
    for name, mutation, defines in (
        ("superseded copies are not redirected", "NO_REDIRECT", "CONTROL_LOSSES=0 DATA_LOSSES=1"),
        ("control packets are taken twice", "NO_CONTROL_DEDUP", "COUNTS_IN_HELLO=0 DATA_LOSSES=0"),
        ("generations are not compared", "NO_GENERATION", "CONTROL_LOSSES=2 DATA_LOSSES=0"),
        ("incarnations are not compared, A restarts", "NO_INCARNATION", "RESTART=A DATA_LOSSES=0"),
        ("incarnations are not compared, D restarts", "NO_INCARNATION", "RESTART=D DATA_LOSSES=0"),
        ("a chunk is freed when acked, though being written", "FREE_AT_ACK", "CONTROL_LOSSES=0 DATA_LOSSES=1"),
        ("the window counts numbers, not their span", "WINDOW_BY_COUNT", "CONTROL_LOSSES=0 DATA_LOSSES=1"),
        ("a new control stream begins without the acks", "NO_ACK_STATE", "CONTROL_LOSSES=1 DATA_LOSSES=0"),
        ("an ended link is a lost one to who has sent Close", "ENDED_IS_LOST", "CONTROL_LOSSES=1 DATA_LOSSES=0"),
    )
]


class CannotCheckError(RuntimeError):
    """A tool is missing or failed."""


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    # pan's exit status is 0 whatever it finds; spin's is that of its parser
    if done.returncode != 0:
        raise CannotCheckError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def run_check(check: Check, folder: Path) -> tuple[str, str]:
    """(what is wrong, or nothing; states and memory)."""
    defines = [f"-D{define}" for define in check.defines.split()]
    _run(["spin", *defines, "-a", str(MODEL)], folder)
    kind = ["-DNP"] if check.cycles else ["-DSAFETY"]
    level = "-O0" if check.mistake else "-O2"  # a mistake shows before optimization pays
    _run(["cc", level, "-w", *kind, "-DVECTORSZ=2048", f"-DMEMLIM={MEMORY_LIMIT_MB}", "-o", "pan", "pan.c"], folder)
    output = _run(["./pan", "-n", "-m100000", *(["-l"] if check.cycles else [])], folder)
    errors, states, megabytes = (
        re.search(pattern, output)
        for pattern in (r"errors: (\d+)", r"(\d+) states, stored", r"([\d.]+)\s+total actual memory usage")
    )
    if errors is None or states is None or megabytes is None:
        raise CannotCheckError(f"pan's answer is not understood:\n{output}")
    size = f"{int(states[1]):,} states, {float(megabytes[1]):.0f} MB"
    found = re.search(r"pan:1: (.*) \(at depth", output)
    if check.mistake:
        return ("" if found else "NOT FOUND"), f"{size}; {found[1] if found else ''}"
    if "Search not completed" in output or "max search depth too small" in output:
        return f"counterexample: {found[1]}" if found else "the search did not end within its memory or depth", size
    return ("" if errors[1] == "0" else f"{errors[1]} errors"), size


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the model of the link protocol.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="checks whose names contain one of these")
    parser.add_argument("--mistakes", action="store_true", help="only the mistakes on purpose, which are quick")
    chosen = parser.parse_args()
    for tool, package in (("spin", "spin"), ("cc", "gcc")):
        if shutil.which(tool) is None:
            print(f"model: {tool} is not installed (Debian and Ubuntu: apt install {package})", file=sys.stderr)
            return 2
    checks = [check for check in MISTAKES + CHECKS * (not chosen.mistakes) if _wanted(check, chosen.only)]
    wrong = 0
    for check in checks:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="geocomm-model-") as folder:
            try:
                fault, size = run_check(check, Path(folder))
            except CannotCheckError as error:
                print(f"model: {check.name}: {error}", file=sys.stderr)
                return 2
        wrong += bool(fault)
        outcome = f"WRONG: {fault}" if fault else "found" if check.mistake else "good"
        print(f"model: {check.name}: {outcome} ({size}; {time.monotonic() - began:.0f} s)", flush=True)
        if fault:
            print(f"  spin {' '.join('-D' + define for define in check.defines.split())} -a {MODEL.name}", flush=True)
    print(f"model: {len(checks) - wrong} of {len(checks)} checks came out as they should")
    return 1 if wrong or not checks else 0


def _wanted(check: Check, words: list[str] | None) -> bool:
    return words is None or any(word in check.name for word in words)


if __name__ == "__main__":
    sys.exit(main())
