"""What a program passes as one object, and a run's configuration has as a section: a pydantic model, checked as it is
made, of which `help()` shows the fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from geocomm.core.bad_input import did_you_mean, problem_text
from geocomm.core.environment import refusal

_HIDDEN = frozenset(dir(BaseModel)) - frozenset(dir(object)) | {"__signature__"}


if TYPE_CHECKING:  # it tells type checkers that fields are arguments
    from pydantic._internal._model_construction import ModelMetaclass

    ShortHelp = ModelMetaclass
else:

    class ShortHelp(type(BaseModel)):
        """Metaclass: names what pydantic adds in no listing. All of it is there and works."""

        def __dir__(cls) -> list[str]:
            """The class's own names, and those of all objects."""
            return [name for name in type.__dir__(cls) if name not in _HIDDEN and not name.startswith("__pydantic_")]


def signature_of(model: type[BaseModel]) -> inspect.Signature:
    """The fields with their defaults; their types are in the text of the help."""
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_default(field))
            for name, field in model.model_fields.items()
        ]
    )


def _default(field: Any) -> Any:
    return inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)


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


class Settings(Section, metaclass=ShortHelp):
    """Base of `geocomm.LocalSettings` and its like. The docstring of a field is its description everywhere."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    if not TYPE_CHECKING:  # to type checkers the fields say what it takes

        def __init__(self, **given: Any) -> None:
            """Fields by name."""
            cls = type(self)
            if unknown := next((name for name in given if name not in cls.model_fields), None):
                near = did_you_mean(unknown, cls.model_fields)
                raise TypeError(f"geocomm.{cls.__name__} has no field {unknown!r}{near}")
            try:
                super().__init__(**given)
            except ValidationError as error:
                wrong = "; ".join(problem_text(one, suggest=lambda _: "") for one in error.errors(include_url=False))
                raise refusal(f"geocomm.{cls.__name__}: {wrong}") from None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Let `help` show the fields."""
        super().__pydantic_init_subclass__(**kwargs)
        cls.__signature__ = signature_of(cls)
        if cls.__doc__:  # not under -OO
            rows = (
                f"        {name}: {field_text(field.description)} Default: {field.get_default()!r}."
                for name, field in cls.model_fields.items()
            )
            cls.__doc__ += "\n\n    Attributes:\n" + "\n".join(rows) + "\n    "


def field_text(description: str | None) -> str:
    """The description of a field, in a line."""
    return " ".join((description or "").split())


def number_or(*words: str, wanted: str, fits: Callable[[float], bool], whole: bool = False) -> PlainValidator:
    """Check a field that takes one of `words`, or a number that `fits`; `wanted` says which numbers do."""
    named = ", ".join(f"'{word}'" for word in words)

    def check(value: Any) -> Any:
        is_number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if value in words if isinstance(value, str) else is_number and fits(value):
            return value
        raise ValueError(f"must be {named} or {wanted} (got {value!r})")

    return PlainValidator(check)
