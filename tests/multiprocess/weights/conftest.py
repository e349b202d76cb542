"""What tests of several files begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.weight_relays import Region


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    made = Region(tmp_path)
    yield made
    made.publisher.close()
