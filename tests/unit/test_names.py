"""A name in the package has one meaning: no two classes, and no two files, are called the same."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import geocomm

_PACKAGE = Path(geocomm.__file__).parent
_OF_EACH_FOLDER = {"__init__.py", "__main__.py"}


def _doubled(places: list[tuple[str, str]]) -> dict[str, list[str]]:
    """The names of (name, place) that have more than one place."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, place in places:
        found[name].append(place)
    return {name: sorted(where) for name, where in found.items() if len(where) > 1}


def test_a_class_name_has_one_meaning() -> None:
    classes = [
        (node.name, f"{file.relative_to(_PACKAGE)}:{node.lineno}")
        for file in _PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    assert len(classes) > 500  # the package was read
    assert not _doubled(classes)


def test_a_file_name_has_one_meaning() -> None:
    """A command's module has the name of the command, which no other file has."""
    files = [
        (file.name, str(file.relative_to(_PACKAGE)))
        for file in _PACKAGE.rglob("*.py")
        if file.name not in _OF_EACH_FOLDER
    ]
    assert not _doubled(files)
