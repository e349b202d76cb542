"""The entry point that torch calls while it is imported."""

from __future__ import annotations

import ast
import inspect
from importlib.metadata import entry_points

import pytest
import torch.distributed as dist

from geocomm import _autoload


@pytest.mark.parametrize("group", ["torch.backends", "torch.distributed.backends"])
def test_entry_point_of_the_installed_package_is_register(group: str) -> None:
    found = [entry for entry in entry_points(group=group) if entry.name == "geocomm"]
    assert found
    assert all(entry.load() is _autoload.register for entry in found)


def test_import_of_torch_alone_knows_the_backend() -> None:
    assert dist.is_backend_available("geocomm")
    assert dist.Backend("geocomm") == "geocomm"
    assert dist.Backend.backend_capability["geocomm"] == ["cpu", "cuda"]


def test_register_again_changes_nothing() -> None:
    before = list(dist.Backend.backend_list)
    _autoload.register()
    assert dist.Backend.backend_list == before


def test_register_that_fails_says_so_and_does_not_raise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("torch changed")

    monkeypatch.setattr(dist.Backend, "backend_list", ["gloo"])
    monkeypatch.setattr(dist.Backend, "register_backend", refuse)
    _autoload.register()
    assert "torch changed" in caplog.text


def test_module_imports_nothing_at_its_top() -> None:
    body = ast.parse(inspect.getsource(_autoload)).body
    assert not [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
