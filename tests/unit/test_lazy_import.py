"""Importing geocomm costs nothing and does nothing."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import geocomm
from geocomm.core.errors import CLASS_OF_CODE
from geocomm.core.installation import install_command


def test_import_of_the_package_loads_neither_torch_nor_the_library() -> None:
    program = (
        "import sys, threading, geocomm; geocomm.__version__; dir(geocomm); "
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy') or m == 'geocomm._C'], "
        "threading.active_count())"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[] 1"


@pytest.mark.parametrize("name", geocomm.__all__)
def test_public_name_resolves_and_is_listed(name: str) -> None:
    assert getattr(geocomm, name) is not None
    assert name in dir(geocomm)


def test_type_checkers_are_told_of_the_same_names_from_the_same_modules() -> None:
    (block,) = [
        node
        for node in ast.parse(Path(geocomm.__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    told = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    found = {name: f"geocomm.{module}" for name, module in geocomm._MODULE_OF.items()}
    assert told == found
    assert geocomm.__all__ == sorted({"__version__", *found})


def test_every_error_that_geocomm_raises_has_a_public_name() -> None:
    raised = {cls.__name__ for cls in CLASS_OF_CODE.values()} | {"GeocommError"}
    assert raised <= set(geocomm.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = geocomm.no_such_name


def test_options_without_a_codec_load_no_library() -> None:
    program = "import sys, geocomm; geocomm.Options(streams=4).validate(); print('geocomm._C' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"


def test_torchft_module_without_torchft_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in sys.modules if name.split(".")[0] == "torchft" or name == "geocomm.integrations.torchft"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchft", None)
    with pytest.raises(ImportError, match=re.escape(install_command("torchft"))):
        importlib.import_module("geocomm.integrations.torchft")
