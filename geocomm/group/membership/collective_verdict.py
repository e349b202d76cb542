"""One verdict on all ranks over what any of them could not do. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from geocomm.core.bad_input import BadInput
from geocomm.core.place import Place
from geocomm.core.typed_torch import all_gather_object

T = TypeVar("T")


def agree(place: Place, error: str | None) -> None:
    """Collective. Raises BadInput on every rank if any rank has an `error`."""
    errors: list[tuple[str, str | None] | None] = [None] * place.world_size
    all_gather_object(errors, (place.describe(), error))
    failed = [item for item in errors if item is not None and item[1] is not None]
    if failed:
        who = f"{failed[0][0]}: " if place.world_size > 1 else ""
        raise BadInput(f"{who}{failed[0][1]}")


def attempt(action: Callable[[], Any]) -> str | None:
    """Run `action`; the text of its OSError or RuntimeError (what torch raises for a failed write), or None."""
    try:
        action()
    except (OSError, RuntimeError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return None


def together(place: Place, action: Callable[[], T]) -> T:
    """Collective. What `action` returns here; BadInput on every rank if it raised BadInput or OSError on any."""
    result: list[T] = []
    error = None
    try:
        result.append(action())
    except (BadInput, OSError) as failure:
        error = str(failure)
    agree(place, error)
    return result[0]
