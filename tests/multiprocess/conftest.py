"""Every test below is marked `multiprocess`."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Called for what is collected below this folder."""
    item.add_marker(pytest.mark.multiprocess)
