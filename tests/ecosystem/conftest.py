"""Ranks that several of these tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from worlds import Worlds


@pytest.fixture(scope="module")
def two() -> Iterator[Worlds]:
    with Worlds(["a", "b"]) as worlds:
        yield worlds


@pytest.fixture(scope="module")
def four() -> Iterator[Worlds]:
    with Worlds(["a", "a", "b", "b"]) as worlds:
        yield worlds
