"""What every part of a run's configuration is made of: a pydantic model without unknown fields; its fields, flat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Positive = Annotated[float, Field(gt=0.0)]


class Section(BaseModel):
    """Base of all sections: unknown fields are refused, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), validate_default=True)


def flat_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of nested sections by dotted names, such as training.steps."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            section = cast(Mapping[str, Any], value)
            flat |= {f"{name}.{inner}": each for inner, each in flat_fields(section).items()}
        else:
            flat[name] = value
    return flat
