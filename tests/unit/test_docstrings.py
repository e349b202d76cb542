"""Docstrings of the public names: Google form, with every argument, which IDEs and the page of the API read."""

from __future__ import annotations

import fnmatch
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
import pytest

import geocomm

REPOSITORY = Path(__file__).parents[2]
KIND = griffe.DocstringSectionKind


def described(text: str) -> dict[griffe.DocstringSectionKind, Any]:
    """The sections of a docstring, by kind."""
    return {section.kind: section.value for section in griffe.Docstring(text).parse("google", warnings=False)}


def own_names(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def shown_members() -> dict[str, list[str]]:
    """The members of classes of which the page of the API shows some only."""
    page = (REPOSITORY / "docs/reference/python-api.md").read_text(encoding="utf-8")
    found = re.findall(r"^::: [\w.]+\.(\w+)\n    options:\n      members:\s+\[([^\]]+)\]", page, re.MULTILINE)
    return {name: re.split(r",\s*", members) for name, members in found}


def public_callables() -> Iterator[tuple[str, Any, str]]:
    """Each public function and method, with its docstring."""
    shown = shown_members()
    for name in geocomm.__all__:
        value = getattr(geocomm, name)
        if inspect.isfunction(value):
            yield name, value, value.__doc__ or ""
        elif inspect.isclass(value) and not issubclass(value, Exception):
            for member, method in vars(value).items():
                raw = method.__func__ if isinstance(method, classmethod) else method
                if inspect.isfunction(raw) and not member.startswith("_") and member in shown.get(name, [member]):
                    yield f"{name}.{member}", raw, raw.__doc__ or ""


CALLABLES = {name: (function, text) for name, function, text in public_callables() if own_names(function)}


@pytest.mark.parametrize("name", CALLABLES)
def test_docstring_describes_exactly_the_arguments(name: str) -> None:
    function, text = CALLABLES[name]
    assert [one.name for one in described(text).get(KIND.parameters, [])] == own_names(function)


@pytest.mark.parametrize("name", CALLABLES)
def test_docstring_says_what_is_returned_where_something_is(name: str) -> None:
    function, text = CALLABLES[name]
    returns_something = inspect.signature(function).return_annotation not in (None, "None", "Generator[None]")
    assert (KIND.returns in described(text)) == returns_something


def test_ruff_checks_the_docstrings_of_every_module_of_public_names() -> None:
    lint = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    (exempt,) = (pattern for pattern, rules in lint["per-file-ignores"].items() if rules == ["D"])
    folder, _, rest = exempt.removeprefix("!").partition("{")
    checked = [f"{folder}{name}{rest.partition('}')[2]}" for name in rest.partition("}")[0].split(",")]
    modules = {f"geocomm/{module.replace('.', '/')}.py" for module in geocomm._MODULE_OF.values()}
    assert [path for path in modules if not any(fnmatch.fnmatch(path, one) for one in checked)] == []
    assert [path for path in checked if not (REPOSITORY / path).exists()] == []
