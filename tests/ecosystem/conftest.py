"""Every test below is marked `multiprocess`; ranks that several of them share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from worlds import Worlds


def pytest_itemcollected(item: pytest.Item) -> None:
    """Called for what is collected below this folder."""
    item.add_marker(pytest.mark.multiprocess)


@pytest.fixture(scope="module")
def two() -> Iterator[Worlds]:
    with Worlds(["a", "b"]) as worlds:
        yield worlds


@pytest.fixture(scope="module")
def four() -> Iterator[Worlds]:
    with Worlds(["a", "a", "b", "b"]) as worlds:
        yield worlds
