"""geocomm/_C.pyi says what the native module has: the same names, arguments and defaults."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType, WrapperDescriptorType

import pytest
import torch

import geocomm
from geocomm.core.native import native

STUB = ast.parse(Path(geocomm.__file__).with_name("_C.pyi").read_text())
if not hasattr(torch.distributed.ProcessGroup, "reconfigure"):  # before torch 2.14
    STUB.body = [node for node in STUB.body if getattr(node, "name", "") != "ReconfigurableGroup"]


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return native()


def stub_members(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Public definitions in a stub's module or class, and __init__."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return {name: node for name, node in found.items() if is_public(name)}


def is_public(name: str) -> bool:
    return not name.startswith("_") or name in ("__init__", "__torch_version__")


def arguments(node: ast.FunctionDef) -> list[tuple[str, str, object]]:
    """(name, kind, default) of each argument; default: its value, "none" where there is none, ... where not literal."""

    def value(default: ast.expr | None) -> object:
        if default is None:
            return "none"
        try:
            literal = ast.literal_eval(default)
        except ValueError:
            return ...
        return ... if literal is ... else repr(literal)

    plain = [*node.args.posonlyargs, *node.args.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(node.args.defaults)) + [*node.args.defaults]
    keyword = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    found = [(argument.arg, "plain", value(default)) for argument, default in zip(plain, defaults, strict=True)]
    return found + [(argument.arg, "keyword", value(default)) for argument, default in keyword]


def native_function(function: object) -> ast.FunctionDef:
    """The signature in the first line that pybind11 writes into a docstring."""
    line = (function.__doc__ or "").strip().splitlines()[0]
    (node,) = ast.parse(f"def {re.sub(r'<[^>]*>', '...', line)}: ...").body
    assert isinstance(node, ast.FunctionDef)
    return node


def assert_same_arguments(where: str, stub: ast.FunctionDef, function: object) -> None:
    expected, real = arguments(stub), arguments(native_function(function))
    assert [entry[:2] for entry in expected] == [entry[:2] for entry in real], where
    for (name, _, said), (_, _, is_) in zip(expected, real, strict=True):
        assert (said == "none") == (is_ == "none"), f"{where}: default of {name}"
        assert ... in (said, is_) or said == is_, f"{where}: default of {name}"


def assert_same_class(where: str, stub: ast.ClassDef, real: type) -> None:
    said = stub_members(stub.body)
    # A class without a constructor in Python has Python's own __init__.
    own = {name for name, member in vars(real).items() if not isinstance(member, WrapperDescriptorType)}
    assert set(said) == {name for name in own if is_public(name)}, where
    for name, node in said.items():
        member = vars(real)[name]
        if isinstance(node, ast.ClassDef):
            assert_same_class(f"{where}.{name}", node, member)
        elif any(ast.unparse(decorator) == "property" for decorator in node.decorator_list):
            assert inspect.isdatadescriptor(member), f"{where}.{name}"
        else:
            assert_same_arguments(f"{where}.{name}", node, getattr(member, "__func__", member))


def test_stub_of_the_module_has_its_names(module: ModuleType) -> None:
    assert set(stub_members(STUB.body)) == {name for name in vars(module) if is_public(name)}


@pytest.mark.parametrize("name", [name for name, node in stub_members(STUB.body).items() if name.islower()])
def test_stub_of_a_function_has_its_arguments(module: ModuleType, name: str) -> None:
    node = stub_members(STUB.body)[name]
    if isinstance(node, ast.FunctionDef):
        assert_same_arguments(name, node, getattr(module, name))
    else:
        assert isinstance(getattr(module, name), str)


@pytest.mark.parametrize("name", [node.name for node in STUB.body if isinstance(node, ast.ClassDef)])
def test_stub_of_a_class_has_its_members(module: ModuleType, name: str) -> None:
    node = stub_members(STUB.body)[name]
    real = getattr(module, name)
    assert_same_class(name, node, real)
    assert [ast.unparse(base).removeprefix("C10d") for base in node.bases] == [
        base.__name__ for base in real.__bases__ if base.__module__ != "pybind11_builtins"
    ]
