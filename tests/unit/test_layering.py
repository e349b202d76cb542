"""The layers of docs/architecture.md, read from the includes of csrc and the imports of geocomm."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
PACKAGE = ROOT / "geocomm"

MAY_INCLUDE = {
    "core": {"core"},
    "codec": {"codec", "core"},
    "transport": {"transport", "core"},
    "collective": {"collective", "codec", "transport", "core"},
    "binding": {"binding", "collective", "codec", "transport", "core"},
    "tools": {"tools", "core"},
    "bench": {"bench", "transport", "core"},
}
# Of libraries that are neither C++'s nor Linux's; the binding may also use torch and its pybind11.
MAY_USE = {
    "codec": ("cuda", "zstd"),
    "transport": ("openssl/", "ucp/", "ucs/"),
    "bench": ("openssl/",),
    "binding": ("cuda",),
}
TORCH = re.compile(r"(torch|ATen|c10|caffe2|pybind11)/|Python\.h$")
MOST_FILES_WITH_TORCH = 3
# C++ headers have no suffix; what else a layer may take from the compiler, libc and the kernel.
PLATFORM = re.compile(
    r"[a-z_]+$|(sys|linux|net|netinet|arpa)/[a-z_0-9]+\.h$|[a-z]*intrin\.h$|cpuid\.h$"
    r"|sanitizer/[a-z_]+\.h$|(unistd|getopt|poll|fcntl|sched|pthread|signal|netdb|malloc|dirent|dlfcn|ifaddrs|spawn)\.h$"
)

# Which of geocomm's parts may import which others; a part is a subpackage, and "geocomm" all modules directly in it.
MAY_IMPORT = {
    "geocomm": {"geocomm"},
    "gradients": {"geocomm", "gradients"},
    "train": {"geocomm", "gradients", "train"},
    "cli": {"geocomm", "train", "cli"},
}
LOADS_THE_NATIVE_MODULE = {"native.py"}
# Importing these is part of `import torch`, of `import geocomm` or of `geocomm --help`: torch comes later or never.
NO_TORCH_AT_IMPORT = ["__init__.py", "_autoload.py", "options.py", *(f"cli/{p.name}" for p in PACKAGE.glob("cli/*.py"))]
# options.py is the one reader of GEOCOMM_* variables. These look at what they hand to processes that they start, or at
# what a program above them set for the job; none of it configures the backend.
READS_VARIABLES = {
    "wan.py": {"GEOCOMM_WAN_CONTROL"},
    "wan_bench_worker.py": {"GEOCOMM_WAN_CONTROL"},
    "cli/wan.py": {"GEOCOMM_KEYS", "GEOCOMM_SECURITY"},
    "train/train_launch.py": {"GEOCOMM_SITE"},
    "train/train_loop.py": {"GEOCOMM_CODEC"},
}


def layer_of(file: Path) -> str:
    return file.relative_to(CSRC).parts[0]


def sources(*suffixes: str) -> list[Path]:
    return sorted(file for file in CSRC.rglob("*") if file.suffix in suffixes)


def includes(text: str) -> Iterator[tuple[str, str]]:
    """(delimiter, path) of each include."""
    yield from re.findall(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', text, re.MULTILINE)


def forbidden_include(layer: str, delimiter: str, path: str) -> bool:
    if TORCH.match(path):
        return layer != "binding"
    if delimiter == '"':
        return path.split("/")[0] not in MAY_INCLUDE[layer]
    return not PLATFORM.match(path) and not path.startswith(MAY_USE.get(layer, ("\0",)))


def parts() -> list[Path]:
    return sorted(file for file in PACKAGE.rglob("*.py") if file.name != "_build_info.py")


def part_of(module: str) -> str | None:
    """The part of geocomm that `module`, a dotted name, is of; None: not of geocomm."""
    names = module.split(".")
    if names[0] != "geocomm":
        return None
    return names[1] if len(names) > 1 and names[1] in MAY_IMPORT else "geocomm"


def part_of_file(file: Path) -> str:
    """As part_of(); what `python -m` runs is a command, wherever it lies."""
    if file.name == "__main__.py":
        return "cli"
    return part_of(".".join(file.relative_to(ROOT).with_suffix("").parts))


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imported(tree: ast.AST, deep: bool = True) -> Iterator[str]:
    """Dotted names that a module imports when it runs; not `deep`: when it is itself imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif is_type_checking(node):
            yield from (name for branch in node.orelse for name in imported(branch, deep))
        elif deep or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imported(node, deep)


def variables_read(tree: ast.AST) -> set[str]:
    """GEOCOMM_* variables that are read: by subscript, get, getenv, pop or `in`; a constant stands for its text."""
    constants = {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def text(node: ast.AST) -> str:
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.Name):
            # CONTROL_VARIABLE may be imported: then the name itself tells.
            return constants.get(node.id, "GEOCOMM_WAN_CONTROL" if node.id == "CONTROL_VARIABLE" else "")
        return ""

    keys: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            keys.append(node.slice)
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            keys.append(node.left)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            keys += node.args[:1] if node.func.attr in ("get", "getenv", "pop") else []
    return {text(key) for key in keys if text(key).startswith("GEOCOMM_")}


def test_include_of_every_source_is_allowed_in_its_layer() -> None:
    bad = [
        f"{file.relative_to(ROOT)} includes {path}"
        for file in sources(".h", ".cc", ".cu", ".cuh")
        for delimiter, path in includes(file.read_text())
        if forbidden_include(layer_of(file), delimiter, path)
    ]
    assert not bad


def test_include_checker_reads_every_layer() -> None:
    assert {layer_of(file) for file in sources(".h", ".cc")} == set(MAY_INCLUDE)


@pytest.mark.parametrize(
    ("layer", "line"),
    [
        ("core", '#include "codec/codec.h"'),
        ("codec", '#include "transport/wire.h"'),
        ("codec", "#include <openssl/ssl.h>"),
        ("transport", '#  include "codec/codec.h"'),
        ("collective", "#include <torch/extension.h>"),
        ("collective", '#include "binding/geo_work.h"'),
        ("core", "#include <gtest/gtest.h>"),
        ("tools", '#include "transport/socket.h"'),
    ],
)
def test_forbidden_include_is_found(layer: str, line: str) -> None:
    ((delimiter, path),) = includes(line)
    assert forbidden_include(layer, delimiter, path)


def test_torch_headers_are_included_by_few_files() -> None:
    users = [
        file.relative_to(ROOT)
        for file in sources(".h", ".cc", ".cu")
        if any(TORCH.match(path) for _, path in includes(file.read_text()))
    ]
    assert 1 <= len(users) <= MOST_FILES_WITH_TORCH, users


def test_python_part_imports_only_what_it_may() -> None:
    bad = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in parts()
        for name in imported(ast.parse(file.read_text()))
        if (other := part_of(name)) and other not in MAY_IMPORT[part_of_file(file)]
    ]
    assert not bad


def test_package_imports_neither_tests_nor_benchmarks() -> None:
    bad = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in parts()
        for name in imported(ast.parse(file.read_text()))
        if name.split(".")[0] in ("benchmarks", "tests", "tools", "setup")
    ]
    assert not bad


def test_native_module_is_imported_by_its_loader_only() -> None:
    users = {
        file.relative_to(PACKAGE).as_posix()
        for file in parts()
        if any(name.startswith("geocomm._C") for name in imported(ast.parse(file.read_text())))
    }
    assert users == LOADS_THE_NATIVE_MODULE


@pytest.mark.parametrize("name", NO_TORCH_AT_IMPORT)
def test_module_imports_no_torch_when_imported(name: str) -> None:
    heavy = {"torch", "transformers", "deepspeed", "matplotlib"}
    assert not heavy & {
        module.split(".")[0] for module in imported(ast.parse((PACKAGE / name).read_text()), deep=False)
    }


def test_environment_is_read_in_one_module() -> None:
    bad = {}
    for file in parts():
        name = file.relative_to(PACKAGE).as_posix()
        if extra := variables_read(ast.parse(file.read_text())) - READS_VARIABLES.get(name, set()):
            bad[name] = extra
    bad.pop("options.py", None)
    assert not bad


@pytest.mark.parametrize(
    "line",
    ['os.environ["GEOCOMM_X"]', 'os.environ.get("GEOCOMM_X")', 'os.getenv("GEOCOMM_X")', '"GEOCOMM_X" in os.environ'],
)
def test_read_of_a_variable_is_found(line: str) -> None:
    assert variables_read(ast.parse(line)) == {"GEOCOMM_X"}


def test_write_of_a_variable_is_not_a_read() -> None:
    assert variables_read(ast.parse('os.environ["GEOCOMM_X"] = "1"')) == set()
