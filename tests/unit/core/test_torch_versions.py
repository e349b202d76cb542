"""Which versions of torch geocomm supports and was tested with is said in several places, alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from geocomm.core import native as loading
from geocomm.sync.gradients.fsdp_seams import CHECKED_TORCH

ROOT = Path(__file__).resolve().parents[3]
TESTED = (ROOT / "tools/tested_torch.txt").read_text().split()
MINORS = [version.rpartition(".")[0] for version in TESTED]


def minor_of(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def test_tested_versions_are_the_same_everywhere() -> None:
    assert [minor_of(MINORS[0]), minor_of(MINORS[-1])] == [loading.OLDEST_TORCH, loading.NEWEST_TESTED_TORCH]
    assert list(CHECKED_TORCH) == MINORS
    assert f"torch {MINORS[0]} to {MINORS[-1]}" in " ".join((ROOT / "docs/project/versions.md").read_text().split())


def test_wheels_are_built_for_every_minor_version_between_them() -> None:
    (first, last) = (minor_of(minor)[1] for minor in (MINORS[0], MINORS[-1]))
    assert [minor_of(minor) for minor in MINORS] == [(2, minor) for minor in range(first, last + 1)]


def test_newer_torch_than_was_tested_is_warned_of_and_loaded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading, "NEWEST_TESTED_TORCH", (2, 10))
    assert loading.native.__wrapped__() is loading.native()
    assert "make torch-matrix" in caplog.text
