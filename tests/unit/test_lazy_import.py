"""Importing geocomm costs nothing and does nothing."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import geocomm

pytestmark = pytest.mark.unit


def test_import_of_the_package_loads_neither_torch_nor_the_library() -> None:
    program = (
        "import sys, threading, geocomm; geocomm.__version__; dir(geocomm); "
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy') or m == 'geocomm._C'], "
        "threading.active_count())"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "[] 1"


@pytest.mark.parametrize("name", geocomm.__all__)
def test_public_name_resolves_and_is_listed(name: str) -> None:
    assert getattr(geocomm, name) is not None
    assert name in dir(geocomm)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = geocomm.no_such_name


def test_options_make_no_sockets_and_load_no_library() -> None:
    program = "import sys, geocomm; geocomm.Options(codec='int8').validate(); print('geocomm._C' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "False"


def test_torchft_module_without_torchft_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchft" or name == "geocomm.torchft"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchft", None)
    with pytest.raises(ImportError, match=r"geocomm\[torchft\]"):
        importlib.import_module("geocomm.torchft")
