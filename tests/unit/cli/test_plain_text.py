"""What commands print of users' data is no markup: an IPv6 address in brackets, a path, a site's name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from rich.text import Text

import geocomm
from geocomm.core.console import plain_console, table_of, working

PACKAGE = Path(geocomm.__file__).parent
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if "rich" in path.read_text()]
OWN = {"console.py": {"Console", "status"}, "commands.py": {"escape"}}
"""The one module that makes consoles, and the one whose text typer prints."""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_text_is_printed_where_it_cannot_be_markup(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        where = f"{path.name}:{node.lineno}"
        if called not in OWN.get(path.name, set()):
            # `escape` is html's in the dashboard; a request's `status` takes nothing.
            assert called not in ("Console", "from_markup", "render_markup"), f"{where}: use plain_console()"
            assert called != "status" or not node.args, f"{where}: use working()"
        if called == "TextColumn":
            literal = isinstance(node.args[0], ast.Constant) and "{" not in str(node.args[0].value)
            assert literal or given.get("markup") == "False", where
        if called in ("Live", "Progress"):
            assert "console" in given, f"{where}: its own console takes markup"


def test_console_shows_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = "[sites.a] [/x] \\[b] :on: [::1]:29400"
    plain_console().print(text)
    plain_console().print(table_of(("[a]", "what"), [(text, 1), (Text("[red]", "red"), None)], title="[title]"))
    with working(text) as tell:
        tell("[/x]")
    told = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert told[:2] == [text, "[title]"]
    assert told[2].split() == ["[a]", "what"]
    assert told[3].startswith(text)
    assert told[4].startswith("[red]")
