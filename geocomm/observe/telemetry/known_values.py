"""What values come to together of which some are not known: None, NaN or infinite. None: none is known."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any


def known(values: Iterable[float | None]) -> list[float]:
    """The values that are known."""
    return [value for value in values if value is not None and math.isfinite(value)]


def total(values: Iterable[float | None]) -> float | None:
    """The sum of those that are known."""
    found = known(values)
    return sum(found) if found else None


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known."""
    found = known(values)
    return statistics.fmean(found) if found else None


def median(values: Iterable[float | None]) -> float | None:
    """The median of the values that are known."""
    found = known(values)
    return statistics.median(found) if found else None


def share(part: float, whole: float) -> float | None:
    """How much of `whole` the part is, at most 1. None: there is no whole."""
    return min(1.0, part / whole) if whole > 0 else None


def words(values: Iterable[Any]) -> str:
    """Each one once, but for empty ones."""
    return ", ".join(sorted({str(value) for value in values if value}))
