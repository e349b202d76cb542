"""What a build says of itself: with a reason, from a build that did not write one down yet, and where there is none."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

import geocomm
from geocomm.core.installation import BuildFacts, build_facts


def built_with(monkeypatch: pytest.MonkeyPatch, **names: Any) -> BuildFacts | None:
    """What is read of a _build_info.py with these names."""
    module = ModuleType("geocomm._build_info")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, "geocomm._build_info", module)
    monkeypatch.setattr(geocomm, "_build_info", module, raising=False)
    return build_facts()


def test_build_without_kernels_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = built_with(monkeypatch, TORCH_VERSION="2.13", CUDA=False, WHY_NO_CUDA="torch is a CPU build")
    assert str(facts) == "built for torch 2.13, without CUDA kernels (torch is a CPU build)"


def test_build_with_kernels_gives_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = built_with(monkeypatch, TORCH_VERSION="2.11", CUDA=True, WHY_NO_CUDA="")
    assert str(facts) == "built for torch 2.11, with CUDA kernels"


def test_build_that_wrote_no_reason_down_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = built_with(monkeypatch, TORCH_VERSION="2.13", CUDA=False)
    assert str(facts) == "built for torch 2.13, without CUDA kernels"


def test_source_tree_that_was_not_built_has_no_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "geocomm._build_info", None)  # Python's way to say that it cannot be imported
    monkeypatch.delattr(geocomm, "_build_info", raising=False)
    assert build_facts() is None
