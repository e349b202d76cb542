#!/usr/bin/env python3
"""Lists C++ functions that only tests call, and fails if there are any: public methods, and what headers declare.

A function counts as called if its name stands in a function's body, in an initializer, in a macro or behind `&`,
anywhere in csrc or tools. Types are not looked at, so a function that shares its name with one in use is not found.
Overrides are called through their base class and are left out.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCES = ("*.h", "*.cc", "*.cu", "*.cuh")
HEADERS = (".h", ".cuh")

KEPT = {
    "UnackedSegments::looks": "a test counts what a lost connection costs, whatever the machine",
    "crc32c_portable": "the reference: tests compare every CPU level with it",
    "set_log_sink": "tests read the log through it",
}
"""Class::method, or function, and why it stays although only tests call it."""

_NOISE = re.compile(
    r"""
    //[^\n]* | /\*.*?\*/                            # comments
    | R"(?P<mark>[^(]*)\(.*?\)(?P=mark)"            # texts
    | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])'
    | ^[ \t]*\#(?:\\\n|[^\n])*                      # for the preprocessor
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define\b(?:\\\n|[^\n])*", re.MULTILINE)
_TOKEN = re.compile(r"[A-Za-z_]\w*|::|->|[^\s\w]|\d[\w.']*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ACCESS = {"public", "protected", "private"}
_NO_FUNCTION = {"if", "for", "while", "switch", "return", "sizeof", "alignas", "decltype", "noexcept", "requires"} | {
    "__attribute__",
    "__launch_bounds__",
}


@dataclass(frozen=True)
class Function:
    """A declaration in a class's public part, or outside of classes."""

    owner: str  # the class, if it is a method
    name: str
    path: Path

    def __str__(self) -> str:
        return f"{self.owner}::{self.name}" if self.owner else self.name


@dataclass
class Scope:
    """What is between a brace and its partner."""

    kind: str  # namespace, class, body
    name: str = ""
    is_public: bool = True


class Reader:
    """Goes through one file's tokens, and sorts them into declared functions and used names."""

    def __init__(self, path: Path) -> None:
        self.functions: list[Function] = []
        self.used: set[str] = set()
        self._path = path
        self._scopes = [Scope("namespace")]
        self._head: list[str] = []  # of the statement that has begun, in a namespace or class

    def read(self) -> None:
        source = self._path.read_text(encoding="utf-8")
        for macro in _MACRO.findall(source):
            self.used |= set(_NAME.findall(macro))
        text = _NOISE.sub(lambda noise: " " if noise[0][:1] != '"' else '""', source)
        for token in _TOKEN.findall(text):
            self._take(token)

    def _take(self, token: str) -> None:
        scope = self._scopes[-1]
        if token == "{":
            self._open()
        elif token == "}":
            if len(self._scopes) > 1:
                self._scopes.pop()
            if self._scopes[-1].kind != "body" and self._ends_declaration():
                self._head = []
        elif scope.kind == "body":
            if _NAME.fullmatch(token):
                self.used.add(token)
        elif token == ";":
            self._end_of_declaration()
        elif scope.kind == "class" and token == ":" and self._head and self._head[-1] in _ACCESS:
            scope.is_public = self._head[-1] == "public"
            self._head = []
        else:
            self._head.append(token)

    def _ends_declaration(self) -> bool:
        """Whether what stands before a body's end needs no semicolon: a function, a namespace."""
        return "(" in self._head or not self._head or "namespace" in self._head

    def _open(self) -> None:
        scope, head = self._scopes[-1], self._head
        if scope.kind == "body":
            self._scopes.append(Scope("body"))
            return
        if "namespace" in head or head[:1] == ["extern"]:
            self._head = []
            self._scopes.append(Scope("namespace"))
            return
        bare = _without_templates(head)
        kinds = [i for i, token in enumerate(bare) if token in ("class", "struct", "union")]
        if kinds and "(" not in bare and "=" not in bare and "enum" not in bare:
            base = bare.index(":") if ":" in bare else len(bare)
            names = [token for token in bare[kinds[0] + 1 : base] if _NAME.fullmatch(token) and token != "final"]
            name = names[-1] if names else ""
            self._head = []
            self._scopes.append(Scope("class", name, is_public=bare[kinds[0]] != "class"))
            return
        self._scopes.append(Scope("body"))  # of a function, an enum, or an initializer: the head goes on behind it
        if "(" in head:
            self._end_of_declaration(keep=True)

    def _end_of_declaration(self, *, keep: bool = False) -> None:
        head, scope = self._head, self._scopes[-1 if not keep else -2]
        self._used_in(head)
        name = _declared(head)
        if name and scope.kind == "class" and scope.is_public and scope.name and name != scope.name:
            self.functions.append(Function(scope.name, name, self._path))
        elif name and scope.kind == "namespace" and self._path.suffix in HEADERS:
            self.functions.append(Function("", name, self._path))
        self._head = ["("] if keep else []

    def _used_in(self, head: list[str]) -> None:
        """Names in initializers, default arguments and lists of members: behind `=`, `&X::`, `.` or `->`."""
        behind = False
        for before, token in zip(["", *head], head, strict=False):
            behind |= token in ("=", "return", ":")
            if _NAME.fullmatch(token) and (behind or before in (".", "->")):
                self.used.add(token)


def _without_templates(head: list[str]) -> list[str]:
    """Without template parameters, among which is the word `class`."""
    bare: list[str] = []
    depth = 0
    for token in head:
        depth += token == "<"
        if depth == 0:
            bare.append(token)
        depth -= token == ">"
    return bare


def _declared(head: list[str]) -> str | None:
    """The name of the function that a statement declares; not of a method that is defined outside of its class."""
    if {"override", "friend", "using", "operator", "typedef", "static_assert", "~"} & set(head):
        return None
    for at in range(2, len(head)):
        if head[at] == "(" and _NAME.fullmatch(head[at - 1]) and head[at - 1] not in _NO_FUNCTION:
            return None if "=" in head[:at] or head[at - 2] == "::" else head[at - 1]
    return None


def source_files(folder: Path) -> Iterator[Path]:
    for pattern in SOURCES:
        yield from sorted(folder.rglob(pattern))


def unused_functions(*folders: Path) -> list[Function]:
    """In order of their files, those of KEPT among them."""
    readers = [Reader(path) for folder in folders for path in source_files(folder)]
    for reader in readers:
        reader.read()
    used = set[str]().union(*(reader.used for reader in readers))
    found = {function for reader in readers for function in reader.functions if function.name not in used}
    return sorted(found, key=lambda one: (one.path, one.name))


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Fails if only tests call a public C++ method, or a function of a header."
    )
    parser.add_argument("folder", nargs="?", type=Path, help="other sources than csrc and tools; KEPT is for those")
    folder = parser.parse_args().folder
    root = Path(__file__).parents[1]
    found = unused_functions(*([folder] if folder else [root / "csrc", root / "tools"]))
    kept = {} if folder else KEPT
    faults = [
        f"{function.path}: {function} has no caller outside tests: use it, delete it, or say in KEPT why it stays"
        for function in found
        if str(function) not in kept
    ]
    faults += [
        f"{name} stands in KEPT, and is used or gone: take it out" for name in kept if name not in map(str, found)
    ]
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
