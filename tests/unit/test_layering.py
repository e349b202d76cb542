"""The wings and rooms of docs/explanation/architecture.md, read from the imports of geocomm, and its other rules."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support.circles import in_circles

pytestmark = pytest.mark.xdist_group("layering")  # each file is parsed once

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "geocomm"

# The rooms of geocomm, the lowest first, each by its wing and its name; what a wing has beside its rooms stands by the
# wing's name. One may import itself, and those that stand in a line before its own.
FLOORS = (
    ("core",),
    ("codecs", "security"),
    ("metrics", "wire"),
    ("group/planning", "group/membership", "train/runs"),
    ("data/corpus",),
    ("data",),
    ("train/models", "group/rendezvous", "lab/emulator", "elastic/journal"),
    ("group/backend", "weights", "elastic/files"),
    ("elastic/leading",),
    ("elastic/site",),
    ("integrations", "elastic"),
    ("observe/telemetry",),
    ("sync/gradients", "sync/local_steps/settings"),
    ("sync/local_steps/model",),
    ("sync/local_steps/outer",),
    ("sync/local_steps/fixed", "sync/local_steps/elastic"),
    (
        "sync/local_steps",
        "observe/alerts",
        "observe/diagnosis",
        "observe/doctor",
        "lab/bench",
        "train/export",
        "train/serve",
    ),
    ("train/loop", "lab/demo", "observe", "observe/dashboard", "cli/ssh_sites"),
    ("cli",),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
WINGS = {room.split("/")[0] for room in FLOOR_OF}
MOST_ARROWS = 68
# What lies beside the wings: Python modules, each with the wings that it may import; what setup.py puts there.
BESIDE = {
    "__init__.py": WINGS,
    "__main__.py": {"cli"},
    "_autoload.py": {"group"},
    "_version.py": set(),
}
FOR_EVERYBODY = {"_version", "_C", "_build_info"}
NOT_PYTHON = {"_C.pyi", "_build_info.pyi", "py.typed"}
BUILT = {"_bin", "_native", "_build_info.py"}
# Importing these is part of `import torch`, of `import geocomm` or of `geocomm --help`: torch comes later or never. The
# last two are what `geocomm dashboard` and `geocomm why` do all of their work with.
NO_TORCH_AT_IMPORT = [
    "__init__.py",
    "_autoload.py",
    "core/options.py",
    "core/environment.py",
    "data/shard_sequences.py",
    "data/additions.py",
    *(f"cli/{p.name}" for p in PACKAGE.glob("cli/*.py")),
    "observe/dashboard/app.py",
    "observe/diagnosis/bottleneck.py",
]
# core/options.py and core/environment.py are the readers of GEOCOMM_* variables, core/site.py of the site's, and
# core/place.py of those that launchers set. These others look at what they hand to processes that they start, or at
# what a program above them set for the job; none of it configures the backend.
READERS = {"core/options.py", "core/environment.py"}
LAUNCHERS_READER = "core/place.py"
LAUNCHERS_VARIABLES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "NNODES", "NODE_RANK"}
READS_VARIABLES = {
    "core/site.py": {"GEOCOMM_SITE"},
    "lab/emulator/emulated_wan.py": {"GEOCOMM_WAN_CONTROL"},
    "lab/bench/wan_bench_worker.py": {"GEOCOMM_WAN_CONTROL"},
    "cli/wan.py": {"GEOCOMM_KEYS", "GEOCOMM_SECURITY"},
}


def parts() -> list[Path]:
    return sorted(file for file in PACKAGE.rglob("*.py") if file.name != "_build_info.py")


@functools.cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def python_room(names: Sequence[str]) -> str:
    """The room in which a module lies whose names below geocomm these are: the longest that the table has."""
    ways = ["/".join(names[:length]) for length in range(len(names), 0, -1)]
    return next((way for way in ways if way in FLOOR_OF), "/".join(names[:1]))


def may_import(file: Path, module: str) -> bool:
    """Whether a file of geocomm may. What `python -m` runs is a command, wherever it lies."""
    names = module.split(".")
    if names[0] != "geocomm" or (names[1:2] and names[1] in FOR_EVERYBODY):
        return True
    other = python_room(names[1:])
    parts = file.relative_to(PACKAGE).parts
    if len(parts) == 1:
        return other.split("/")[0] in BESIDE[parts[0]]
    own = "cli" if parts[-1] == "__main__.py" else python_room(parts[:-1])
    return other == own or (other in FLOOR_OF and FLOOR_OF[other] < FLOOR_OF[own])


def arrows_of_wings() -> set[tuple[str, str]]:
    """(wing, another one that it imports)."""
    return {
        (wing, names[1])
        for file in parts()
        if (wing := file.relative_to(PACKAGE).parts[0]) in WINGS and file.name != "__main__.py"
        for name in imported(tree_of(file), types=True)
        if (names := name.split("."))[0] == "geocomm" and names[1] in WINGS - {wing}
    }


def modules_imported(file: Path, deep: bool) -> set[Path]:
    """The files of geocomm that `file` imports; `deep` as in imported()."""
    found = set()
    for name in imported(tree_of(file), deep):
        if name.split(".")[0] == "geocomm":
            names = name.split(".")[1:]
            for path in (PACKAGE.joinpath(*names), PACKAGE.joinpath(*names[:-1])):
                if path.with_suffix(".py").is_file():
                    found.add(path.with_suffix(".py"))
                    break
    return found


def imported_with(file: Path) -> set[str]:
    """Top-level packages that are imported when `file` is."""
    found, reached, new = set(), set(), {file}
    while new:
        reached.add(file := new.pop())
        found |= {module.split(".")[0] for module in imported(tree_of(file), deep=False)}
        new |= modules_imported(file, deep=False) - reached
    return found


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


@functools.cache
def imported(tree: ast.AST, deep: bool = True, types: bool = False) -> list[str]:
    """Dotted names that a module imports when it runs; not `deep`: when it is itself imported; `types`: those too."""
    return list(_imported(tree, deep, types))


def _imported(tree: ast.AST, deep: bool, types: bool) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif is_type_checking(node) and not types:
            yield from (name for branch in node.orelse for name in _imported(branch, deep, types))
        elif deep or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _imported(node, deep, types)


def variables_read(tree: ast.AST) -> set[str]:
    """Variables of geocomm and of launchers that are read: by subscript, get, getenv, pop, of what is named like an
    environment where it is a launcher's, or by `in`; a constant stands for its text."""
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

    reads: list[tuple[ast.AST, ast.AST]] = []  # what is read, of what
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            reads.append((node.slice, node.value))
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            reads.append((node.left, node.comparators[0]))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            reads += [(key, node.func.value) for key in node.args[:1] if node.func.attr in ("get", "getenv", "pop")]
    return {
        text(key)
        for key, of in reads
        if text(key).startswith("GEOCOMM_")
        or (text(key) in LAUNCHERS_VARIABLES and ast.unparse(of).split(".")[-1] in ("os", "environ", "environment"))
    }


def test_every_room_is_in_the_table_and_nothing_else_lies_beside_the_wings() -> None:
    there = {file.name for file in PACKAGE.iterdir() if file.suffix != ".so"}
    # Folders that had a wing once keep Python's caches.
    there -= {file.name for file in PACKAGE.iterdir() if file.is_dir() and not any(file.rglob("*.py"))}
    assert there - BUILT == {*WINGS, *BESIDE, *NOT_PYTHON}
    rooms = {file.parent.relative_to(PACKAGE).as_posix() for file in parts() if file.parent != PACKAGE}
    assert rooms == {*FLOOR_OF, *WINGS}


def test_every_room_says_what_it_is_for() -> None:
    for room in {*FLOOR_OF, *WINGS}:
        (statement,) = ast.parse((PACKAGE / room / "__init__.py").read_text()).body
        assert isinstance(statement, ast.Expr), f"{room}: more than a docstring"


def test_tests_lie_in_folders_named_as_the_wing_that_they_test() -> None:
    for kind, others in (("unit", {"docs"}), ("multiprocess", {"collectives", "docs", "installation"})):
        folders = {file.parent.name for file in (ROOT / "tests" / kind).glob("*/test_*.py")}
        assert folders <= {*WINGS, *others}


def test_wings_import_each_other_in_no_circle_and_along_few_arrows() -> None:
    arrows = arrows_of_wings()
    assert not in_circles({PACKAGE / wing: {PACKAGE / other for one, other in arrows if one == wing} for wing in WINGS})
    assert len(arrows) <= MOST_ARROWS


def test_module_imports_only_what_its_room_may() -> None:
    bad = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in parts()
        for name in imported(tree_of(file), types=True)
        if not may_import(file, name)
    ]
    assert not bad


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("core/options.py", "geocomm.metrics.counters.stats"),
        ("codecs/tensor_codec.py", "geocomm.metrics.counters"),
        ("core/link_table.py", "geocomm.lab.emulator.emulated_wan"),
        ("group/backend/runtime.py", "geocomm.sync.gradients.gradient_hook"),
        ("lab/bench/codec_bench.py", "geocomm"),
        ("lab/bench/codec_bench.py", "geocomm.compress"),
        ("observe/doctor/examination.py", "geocomm.new_package.module"),
        ("_autoload.py", "geocomm.core.options"),
    ],
)
def test_forbidden_import_is_found(file: str, module: str) -> None:
    assert not may_import(PACKAGE / file, module)


def test_modules_import_each_other_in_no_circle() -> None:
    assert not in_circles({file: modules_imported(file, deep=True) for file in parts() if file.name != "__init__.py"})


def test_circle_is_found() -> None:
    a, b, c = (ROOT / name for name in ("a", "b", "c"))
    assert in_circles({a: {b}, b: {a}, c: {ROOT}}) == [a, b]


def test_package_imports_neither_tests_nor_benchmarks() -> None:
    bad = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in parts()
        for name in imported(tree_of(file))
        if name.split(".")[0] in ("benchmarks", "tests", "tools", "setup")
    ]
    assert not bad


def test_native_module_is_loaded_by_its_loader_only() -> None:
    """Others import its types for type checkers alone."""
    assert not [file for file in parts() if any(name.startswith("geocomm._C") for name in imported(tree_of(file)))]


@pytest.mark.parametrize("name", ["__init__.py", "_autoload.py", "core/environment.py", "core/place.py"])
def test_module_imports_no_pydantic_when_imported(name: str) -> None:
    assert "pydantic" not in imported_with(PACKAGE / name)


@pytest.mark.parametrize("name", NO_TORCH_AT_IMPORT)
def test_module_imports_no_torch_when_imported(name: str) -> None:
    assert not {"torch", "transformers", "deepspeed", "matplotlib"} & imported_with(PACKAGE / name)


def private_parts(tree: ast.AST) -> set[str]:
    """Attributes of other objects that their names say are private; not those of the module's own classes."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    own |= {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match(r"_[a-zA-Z]", node.attr) and node.attr not in own
    } - {"_replace", "_exit", "_fields"}  # public, of named tuples and of os


def test_private_parts_of_torch_and_deepspeed_are_used_in_the_seams_only() -> None:
    bad = {
        f"{file.relative_to(PACKAGE)}: {name}"
        for room in ("sync", "train/loop")
        for file in (PACKAGE / room).rglob("*.py")
        if file.name != "fsdp_seams.py"
        for name in private_parts(tree_of(file))
    }
    assert not bad


def test_private_part_of_another_object_is_found() -> None:
    source = "class A:\n    def f(self, engine):\n        self._own = engine._theirs\n        return self._own"
    assert private_parts(ast.parse(source)) == {"_theirs"}


def test_no_assertion_guards_the_state_of_the_package() -> None:
    # They vanish under -O.
    bad = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in parts()
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Assert)
    ]
    assert not bad


def test_environment_is_read_in_the_modules_for_it() -> None:
    bad = {}
    for file in parts():
        name = file.relative_to(PACKAGE).as_posix()
        found = variables_read(tree_of(file))
        if name in READERS:
            found &= LAUNCHERS_VARIABLES
        if name == LAUNCHERS_READER:
            found -= LAUNCHERS_VARIABLES
        if extra := found - READS_VARIABLES.get(name, set()):
            bad[name] = extra
    assert not bad


@pytest.mark.parametrize(
    "line",
    ['os.environ["GEOCOMM_X"]', 'os.environ.get("GEOCOMM_X")', 'os.getenv("GEOCOMM_X")', '"GEOCOMM_X" in os.environ'],
)
def test_read_of_a_variable_is_found(line: str) -> None:
    assert variables_read(ast.parse(line)) == {"GEOCOMM_X"}


@pytest.mark.parametrize(
    "line",
    ['os.environ["RANK"]', 'environ.get("RANK")', 'os.getenv("RANK")', '"RANK" in os.environ', 'environment["RANK"]'],
)
def test_read_of_a_launchers_variable_is_found(line: str) -> None:
    assert variables_read(ast.parse(line)) == {"RANK"}


def test_other_things_of_the_name_of_a_launchers_variable_are_no_reads() -> None:
    assert variables_read(ast.parse('record["RANK"]; os.environ | {"RANK": "1"}')) == set()


def test_write_of_a_variable_is_not_a_read() -> None:
    assert variables_read(ast.parse('os.environ["GEOCOMM_X"] = "1"')) == set()
