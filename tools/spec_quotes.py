#!/usr/bin/env python3
"""Lists MUST sentences of docs/spec that no line of code or no test quotes, and quotes that the pages do not have.

A requirement begins with its number, that of the section on its page and its own: `**2.1** JOB MUST be ...`. Code that
keeps it and a test of it have a line before them that quotes a part of the sentence: `// spec channel 2.1: "..."`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_CODE, _TESTS = ("csrc", "geocomm"), ("tests",)
_ENDINGS = {".cc", ".h", ".cu", ".cuh", ".py"}
_REQUIREMENT = re.compile(r"\*\*(\d+\.\d+)\*\* ((?:[^.]|\.(?!\s|$))*\.?)")
_QUOTE = re.compile(r'^\s*(?://|#) spec (\w+) (\d+\.\d+): "(.+)"$')
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


def requirements(page: Path) -> Iterator[tuple[str, str, int]]:
    """Number, sentence and line of each requirement of a page; the number is empty where a MUST has none."""
    text = page.read_text()
    found = list(_REQUIREMENT.finditer(text))
    for match in found:
        yield match[1], _plain(match[2]), text.count("\n", 0, match.start()) + 1
    for must in re.finditer(r"(?<!`)\bMUST\b", text):
        if not any(match.start() < must.start() < match.end() for match in found):
            yield "", "", text.count("\n", 0, must.start()) + 1


def quotes(root: Path, folders: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Page and number, text and place of each quote below these folders."""
    for file in (file for folder in folders for file in sorted((root / folder).rglob("*")) if file.suffix in _ENDINGS):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if match := _QUOTE.match(line):
                yield f"{match[1]} {match[2]}", _plain(match[3]), f"{file.relative_to(root)}:{number}"


def faults(root: Path) -> Iterator[str]:
    """What is to be mended below `root`, a line each."""
    sentences: dict[str, str] = {}
    in_code, in_tests = list(quotes(root, _CODE)), list(quotes(root, _TESTS))
    quoted_by = (("code", {name for name, _, _ in in_code}), ("test", {name for name, _, _ in in_tests}))
    for page in sorted((root / "docs" / "spec").glob("*.md")):
        for number, sentence, line in requirements(page):
            name, where = f"{page.stem} {number}", f"{page.relative_to(root)}:{line}"
            if not number:
                yield f"{where}: a MUST whose sentence has no number: begin it with **SECTION.NUMBER**"
            elif name in sentences:
                yield f"{where}: {number} stands twice on this page"
            for kind, names in quoted_by if number else ():
                if name not in names:
                    yield f"{where}: no {kind} quotes {number}: {sentence}"
            sentences[name] = sentence
    for name, text, where in (*in_code, *in_tests):
        if text not in sentences.get(name, ""):
            yield f"{where}: docs/spec does not say so in {name}: {text}"


def _plain(text: str) -> str:
    """The words of a sentence, without marks of Markdown and line ends."""
    return " ".join(_LINK.sub(r"\1", text).replace("`", "").split())


def main() -> int:
    """1: there are faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[1], help="of the tree")
    found = list(faults(parser.parse_args().root))
    print("\n".join(found), end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
