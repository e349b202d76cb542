"""The tool for mutation testing: which mutants it finds, and that tests see one."""

from __future__ import annotations

from pathlib import Path

import mutants
import pytest


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
def test_every_place_is_changed_once(source: str, changed: list[str]) -> None:
    found = mutants.mutants_of(source.encode(), Path("x.py"))
    assert sorted(mutant.of(source.encode()).decode() for mutant in found) == sorted(changed)


@pytest.mark.parametrize(
    "source", ["raise E(1 + 2)", 'x = f"{a + 1}"', "x: A[2]", "x = True", '"""1 < 2"""', "x = a | b", "f = 'a'"]
)
def test_errors_hints_and_texts_stay(source: str) -> None:
    assert mutants.mutants_of(source.encode(), Path("x.py")) == []


def test_mutant_is_named_by_its_place() -> None:
    (mutant,) = mutants.mutants_of(b"a = b\nc = d > e\n", Path("geocomm/x.py"))
    assert str(mutant) == "geocomm/x.py:2: `>` -> `>=`"


def test_tests_of_a_package_are_its_unit_tests_and_properties() -> None:
    assert mutants.tests_of("group/planning")[0] == "tests/unit/group"
    assert "tests/property/test_hub_bytes.py" in mutants.tests_of("wire")
