"""What a place says of a stream: its versions, and the newest one."""

from __future__ import annotations

from contextlib import suppress

from pydantic import ValidationError

from geocomm.data.places import FilePlace
from geocomm.weights.stream_version import NEWEST, VERSIONS, Hint, StreamFile

_HINT_BYTES = 1024
"""Of which a hint has fewer."""


def version_numbers(place: FilePlace) -> list[int]:
    """The versions of a stream that can be listed, ascending. OSError."""
    found = (StreamFile.of(name) for name in place.names(VERSIONS))
    return sorted(file.number for file in found if file is not None and not file.sha256)


def newest_number(place: FilePlace) -> int:
    """The newest version, as the place says; 0: it has none. OSError."""
    with suppress(FileNotFoundError, ValidationError):
        return Hint.model_validate_json(place.read(NEWEST, 0, _HINT_BYTES)).number
    return 0
