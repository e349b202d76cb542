"""Counts in messages: `1 rank`, never `1 ranks`, since `count_text` says them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import geocomm

PACKAGE = Path(geocomm.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
THINGS = re.compile(
    r" (ranks|sites|steps|rounds|nodes|shards|tokens|sequences|fragments|states|members|choices|cores)\b"
)


def counts_by_hand(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.JoinedStr):
            continue
        for number, part in enumerate(node.values[1:], 1):
            before = node.values[number - 2] if number > 1 else None
            told, counted = part, node.values[number - 1]
            if not (isinstance(told, ast.Constant) and THINGS.match(str(told.value))):
                continue
            if not isinstance(counted, ast.FormattedValue) or counted.format_spec is not None:
                continue  # 1.23e9 tokens
            if re.fullmatch(r"[A-Z_]+|large_text\(.*\)|.*'.*' if .*", ast.unparse(counted.value)):
                continue
            # Of "3 of 4 ranks" the second number is seldom 1.
            share = isinstance(before, ast.Constant) and re.search(r"\b(of|all) $", str(before.value))
            if not share:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"


def test_counts_are_said_by_count_text() -> None:
    found = [each for path in MODULES for each in counts_by_hand(path)]
    assert not found, "\n".join(found)
