"""Who says what of this process's counters: readers that are registered here, so that metrics import none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_readers: dict[str, Callable[[], Any]] = {}


def register(name: str, read: Callable[[], Any]) -> None:
    """`read` tells `name` from now on; called from any thread."""
    _readers[name] = read


def read(name: str, unknown: Any) -> Any:
    """What the reader of `name` says now; `unknown` where there is none yet."""
    reader = _readers.get(name)
    return unknown if reader is None else reader()
