#!/usr/bin/env python3
"""Mutation testing: makes small faults in packages of geocomm, one at a time, and says which of them the tests see.

A mutant differs from the code in one place: a comparison, a sign, a number plus 1, `and` for `or`, or a call left out.
It meets the unit tests of its package and the property tests that import the package, in a copy of the tree; with
`--wide`, also those of several processes. A mutant that no test sees is a test to write, unless it changes nothing that
matters: a message, a timing.

The tools at PyPI do not fit. mutmut forks a process in which the tests have run, which torch's OpenMP threads do not
outlive; cosmic-ray runs every mutant, without a sample, and imports torch anew for each.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NATIVE = ("_build_info.py", "_bin/*", "_native/*/*")
LIMIT_FACTOR = 5
"""A mutant that takes this many times what the tests take without a fault, and `LIMIT_S` more, hangs: it is seen."""
LIMIT_S = 60.0

_COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is"}
_WORDS = {"in": "not in", "not in": "in", "and": "or", "or": "and"}
_SIGNS = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*"}
_OTHER = _COMPARISONS | _WORDS | _SIGNS
_OPERATOR = re.compile(r"is\s+not\b|not\s+in\b|\b(?:is|in|and|or)\b|//|[<>!=]=|[-+*/<>]")


@dataclass(frozen=True)
class Mutant:
    """A file with one place changed: the bytes from `begin` to `end`."""

    path: Path  # from ROOT
    line: int
    begin: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: `{self.old}` -> `{self.new}`"

    def of(self, source: bytes) -> bytes:
        """The changed file."""
        return source[: self.begin] + self.new.encode() + source[self.end :]


class _Finder(ast.NodeVisitor):
    """Collects the mutants of one file. Errors, type hints and texts stay as they are."""

    def __init__(self, path: Path, source: bytes) -> None:
        self._path, self._source = path, source
        self._lines = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]  # where each begins
        self.found: list[Mutant] = []
        self.visit(ast.parse(source))

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.Raise() | ast.JoinedStr():
                return
            case ast.AnnAssign(value=value):
                if value is not None:
                    self.visit(value)
                return
            case ast.Compare(left=left, comparators=others):
                self._swap(left, *others)
            case ast.BoolOp(values=values):
                self._swap(*values)
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() | ast.FloorDiv()):
                self._swap(node.left, node.right)
            case ast.UnaryOp(op=ast.USub() | ast.Not()):
                self._replace(self._span(node)[0], self._span(node.operand)[0], "")
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                self._replace(*self._span(node), repr(number + 1))
            case ast.Expr(value=ast.Call()):
                self._replace(*self._span(node), "None")
            case _:
                pass
        self.generic_visit(node)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.lineno - 1] + node.col_offset, self._lines[node.end_lineno - 1] + node.end_col_offset

    def _swap(self, *operands: ast.expr) -> None:
        for left, right in itertools.pairwise(operands):
            begin, end = self._span(left)[1], self._span(right)[0]
            if operator := _OPERATOR.search(self._source[begin:end].decode()):
                new = _OTHER[" ".join(operator[0].split())]
                self._replace(begin + operator.start(), begin + operator.end(), new)

    def _replace(self, begin: int, end: int, new: str) -> None:
        line = self._source.count(b"\n", 0, begin) + 1
        self.found.append(Mutant(self._path, line, begin, end, self._source[begin:end].decode(), new))


def mutants_of(source: bytes, path: Path) -> list[Mutant]:
    """All of a file, in its order."""
    return sorted(_Finder(path, source).found, key=lambda one: (one.begin, one.end))


def tests_of(package: str) -> list[str]:
    """The folder and files of tests that a mutant of the package, a path below geocomm, meets."""
    name = re.compile(rf"\bgeocomm\.{package.replace('/', '.')}\b")
    properties = [file for file in sorted((ROOT / "tests/property").glob("test_*.py")) if name.search(file.read_text())]
    return [str(path.relative_to(ROOT)) for path in (ROOT / "tests/unit" / package.split("/")[0], *properties)]


@contextlib.contextmanager
def copied_tree() -> Generator[Path]:
    """A copy of the tree without what git ignores, but with the native module."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = {ROOT / name for name in subprocess.check_output(command, cwd=ROOT, text=True).split("\0") if name}
    files |= {file for pattern in NATIVE for file in (ROOT / "geocomm").glob(pattern)}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for file in filter(Path.is_file, files):
            target = Path(folder) / file.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
        yield Path(folder)


class Stage:
    """Tests that a mutant meets. They pass without a fault, or the program ends."""

    def __init__(self, tree: Path, tests: list[str]) -> None:
        self._tree, self._tests = tree, tests
        begin = time.monotonic()
        if not self._pass(3600):
            sys.exit(f"mutants: {' '.join(tests)} fails without a fault:\n{(tree / 'pytest.out').read_text()[-3000:]}")
        self._limit_s = LIMIT_S + LIMIT_FACTOR * (time.monotonic() - begin)

    def sees(self, mutant: Mutant) -> bool:
        """Whether a test fails, or hangs."""
        file = self._tree / mutant.path
        source = file.read_bytes()
        file.write_bytes(mutant.of(source))
        try:
            return not self._pass(self._limit_s)
        finally:
            file.write_bytes(source)

    def _pass(self, limit_s: float) -> bool:
        """Run the tests in a child, which has torch already; no process of theirs stays."""
        child = os.fork()
        if child == 0:
            self._become_pytest()
        end = time.monotonic() + limit_s
        status = None
        while status is None and time.monotonic() < end:
            time.sleep(0.05)
            ended, code = os.waitpid(child, os.WNOHANG)
            status = code if ended else None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if status is None:
            os.waitpid(child, 0)
        return status == 0

    def _become_pytest(self) -> None:
        os.setsid()
        os.chdir(self._tree)
        output = os.open("pytest.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        import pytest

        os._exit(pytest.main(["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *self._tests]))


def judge(stages: list[Stage], chosen: list[Mutant], minutes: float) -> None:
    """Print a line for each mutant, until the time is over."""
    end = time.monotonic() + 60 * minutes
    done = seen = 0
    for mutant in itertools.takewhile(lambda _: time.monotonic() < end, chosen):
        is_seen = any(stage.sees(mutant) for stage in stages)
        done, seen = done + 1, seen + is_seen
        print(f"- {'seen' if is_seen else 'NOT SEEN'}: {mutant}", flush=True)
    print(f"{seen} of {done} were seen; the time was over for {len(chosen) - done} more", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make small faults, one at a time, and say which the tests see.")
    parser.add_argument("packages", nargs="+", metavar="package", help="packages of geocomm, such as group/planning")
    parser.add_argument("--number", type=int, default=20, help="mutants of each package, drawn at random (20)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    parser.add_argument("--minutes", type=float, default=30, help="at most, for each package (30)")
    parser.add_argument("--wide", action="store_true", help="those that are not seen meet tests/multiprocess, too")
    arguments = parser.parse_args()
    with copied_tree() as tree:
        sys.path.insert(0, str(tree))  # before torch, which imports geocomm
        # Two mutants of one second may have the same size and date, by which Python knows the bytecode of a file.
        os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        importlib.import_module("torch")  # once, for all children

        for package in arguments.packages:
            files = sorted((tree / "geocomm" / package).rglob("*.py"))
            every = [mutant for file in files for mutant in mutants_of(file.read_bytes(), file.relative_to(tree))]
            numbers = random.Random(arguments.seed).sample(range(len(every)), min(arguments.number, len(every)))
            print(f"\n{package}: {len(numbers)} of {len(every)} mutants, seed {arguments.seed}", flush=True)
            tests = [tests_of(package)] + [[f"tests/multiprocess/{package.split('/')[0]}"]] * arguments.wide
            judge(
                [Stage(tree, each) for each in tests], [every[number] for number in sorted(numbers)], arguments.minutes
            )


if __name__ == "__main__":
    main()
