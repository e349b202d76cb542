"""The tool for mutation testing: which mutants it finds, and that tests see one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "mutants.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("x = a < b <= c", ["x = a <= b <= c", "x = a < b < c"]),
        ("x = (a) is  not b", ["x = (a) is b"]),
        ("x = a not in b", ["x = a in b"]),
        ("x = a and b", ["x = a or b"]),
        ("x = not a", ["x = a"]),
        ("x = -a + b", ["x = -a - b", "x = a + b"]),
        ("x = é // b", ["x = é * b"]),
        ("x = f(7)", ["x = f(8)"]),
        ("f(7)", ["None", "f(8)"]),
        ("if a:\n    f(\n        b\n    )\n", ["if a:\n    None\n"]),
    ],
)
def test_every_place_is_changed_once(tool: ModuleType, source: str, changed: list[str]) -> None:
    found = tool.mutants_of(source.encode(), Path("x.py"))
    assert sorted(mutant.of(source.encode()).decode() for mutant in found) == sorted(changed)


@pytest.mark.parametrize(
    "source", ["raise E(1 + 2)", 'x = f"{a + 1}"', "x: A[2]", "x = True", '"""1 < 2"""', "x = a | b", "f = 'a'"]
)
def test_errors_hints_and_texts_stay(tool: ModuleType, source: str) -> None:
    assert tool.mutants_of(source.encode(), Path("x.py")) == []


def test_mutant_is_named_by_its_place(tool: ModuleType) -> None:
    (mutant,) = tool.mutants_of(b"a = b\nc = d > e\n", Path("geocomm/x.py"))
    assert str(mutant) == "geocomm/x.py:2: `>` -> `>=`"


def test_tests_of_a_package_are_its_unit_tests_and_properties(tool: ModuleType) -> None:
    assert tool.tests_of("group/planning")[0] == "tests/unit/group"
    assert "tests/property/test_hub_bytes.py" in tool.tests_of("group/rendezvous")
