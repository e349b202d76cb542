"""Records that ranks tell each other as JSON, where the others may run another version of geocomm."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any, TypeVar

Kind = TypeVar("Kind")


def from_record(kind: type[Kind], record: Mapping[str, Any]) -> Kind:
    """The dataclass `kind` of what another rank told. What it has no field for is left out, so that ranks of different
    versions can read each other's versions and say what is wrong. Raises VersionMismatchError where it has not all that
    is needed."""
    try:
        return kind(**{name: record[name] for name in field_names(kind) if name in record})
    except TypeError as error:
        from geocomm.core.errors import VersionMismatchError

        raise VersionMismatchError(
            f"a rank runs another version of geocomm, whose records this one cannot read ({error}): install the same "
            "version on all ranks"
        ) from None


def field_names(kind: type) -> list[str]:
    """The names of a dataclass's fields, in their order."""
    return [field.name for field in dataclasses.fields(kind)]


def layout_of(*kinds: type) -> str:
    """A short text that differs between dataclasses with different fields."""
    text = ";".join(",".join(field_names(kind)) for kind in kinds)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
