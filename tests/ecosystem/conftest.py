"""These tests start their ranks with the harness of tests/multiprocess."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "multiprocess"))

from worlds import Worlds


@pytest.fixture(scope="module")
def two() -> Iterator[Worlds]:
    with Worlds(["a", "b"]) as worlds:
        yield worlds


@pytest.fixture(scope="module")
def four() -> Iterator[Worlds]:
    with Worlds(["a", "a", "b", "b"]) as worlds:
        yield worlds
