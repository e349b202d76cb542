"""What commands print of users' data is no markup: an IPv6 address in brackets, a path, a site's name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import geocomm

PACKAGE = Path(geocomm.__file__).parent
WITH_CONSOLE = [path for path in sorted(PACKAGE.rglob("*.py")) if "Console(" in path.read_text()]


@pytest.mark.parametrize("path", WITH_CONSOLE, ids=lambda path: path.stem)
def test_console_takes_no_markup_unless_its_module_escapes_data(path: Path) -> None:
    module = ast.parse(path.read_text())
    escapes = any(isinstance(node, ast.ImportFrom) and node.module == "rich.markup" for node in ast.walk(module))
    made = [
        {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Console"
    ]
    assert made
    assert escapes or all(options.get("markup") == "False" for options in made)
