"""The lint for C++ functions that only tests call, on small sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from unused_functions import __file__ as LINT
from unused_functions import unused_functions

pytestmark = pytest.mark.unit


def names(tmp_path: Path, header: str, body: str = "") -> list[str]:
    (tmp_path / "some.h").write_text(header)
    (tmp_path / "some.cc").write_text(body)
    return [str(function) for function in unused_functions(tmp_path)]


def test_method_that_is_declared_and_defined_alone_is_found(tmp_path: Path) -> None:
    header = "class Box { public: Box(); int lid() const { return lid_; } void shut(); private: int lid_ = 0; };"
    assert names(tmp_path, header, "void Box::shut() { lid_ = 1; }") == ["Box::lid", "Box::shut"]
    run = subprocess.run([sys.executable, LINT, tmp_path], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert [line.split(": ", 1)[1].split(" ", 1)[0] for line in run.stdout.splitlines()] == ["Box::lid", "Box::shut"]


@pytest.mark.parametrize(
    "use",
    [
        "int f(Box& box) { return box.lid(); }",
        "const auto kLid = &Box::lid;",
        "struct Other { int top(const Box& box) { return box.lid(); } int at = 0; }; int g(Other o) { o.top({}); }",
        "Other::Other(Box& box) : lid_(box.lid()) {}",
    ],
)
def test_method_with_a_caller_is_not_found(tmp_path: Path, use: str) -> None:
    assert names(tmp_path, "class Box { public: int lid() const; };", use) == []


@pytest.mark.parametrize("mention", ["// box.lid()\n", 'const char* kText = "lid";', "/* lid() { */ int x;"])
def test_mention_in_a_comment_or_text_is_no_call(tmp_path: Path, mention: str) -> None:
    assert names(tmp_path, "class Box { public: int lid() const; };", mention) == ["Box::lid"]


@pytest.mark.parametrize(
    "header",
    [
        "class Box { int lid() const; };",
        "class Box { public: Box(int lid); ~Box(); bool operator==(const Box&) const; };",
        "class Box : public Base { public: int lid() const override; };",
        "class Box { protected: template <class T> void lid(T t); };",
    ],
)
def test_what_is_no_public_method_of_its_own_is_left_out(tmp_path: Path, header: str) -> None:
    assert names(tmp_path, header) == []


def test_method_behind_a_body_and_a_default_argument_is_found(tmp_path: Path) -> None:
    header = (
        "struct Box { int a() { if (true) { return 1; } return a(); } int b(int c = 3); enum class E { x }; int d(); };"
    )
    assert names(tmp_path, header) == ["Box::b", "Box::d"]


@pytest.mark.parametrize(
    "header",
    [
        "namespace n { int lid(int x); }",
        "inline int lid(int x) { return x; }",
        "template <typename T> decltype(auto) lid(T x) { return x; }",
        "constexpr __attribute__((pure)) int lid(int x) { return x; }",
    ],
)
def test_function_that_a_header_declares_is_found(tmp_path: Path, header: str) -> None:
    assert names(tmp_path, header, "int n::lid(int x) { return x; }") == ["lid"]


@pytest.mark.parametrize(
    "use",
    [
        "int f() { return lid(1); }",
        "constexpr int kLid = lid(1);",
        "#define LID(x) \\\n  lid(x)\n",
    ],
)
def test_function_with_a_caller_is_not_found(tmp_path: Path, use: str) -> None:
    assert names(tmp_path, "int lid(int x);", use) == []


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("class Box { int lid(int x); }; inline int Box::lid(int x) { return x; }", ""),
        ("", "int lid(int x) { return x; }"),
        ("bool operator==(Box a, Box b); struct Box { friend int lid(Box b); };", ""),
        ("static_assert(sizeof(int) == 4); using Lid = int (*)(int x); constexpr int kLid = Box(1).x;", ""),
    ],
)
def test_what_no_header_declares_as_a_function_is_left_out(tmp_path: Path, header: str, body: str) -> None:
    assert names(tmp_path, header, body) == []
