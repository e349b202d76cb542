"""What a program passes as one object, and a run's configuration has as a section: a pydantic model, checked as it is
made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, PlainValidator, ValidationError

from geocomm.core.bad_input import did_you_mean
from geocomm.core.config_section import Section
from geocomm.core.environment import refusal
from geocomm.core.model_errors import problem_text
from geocomm.core.short_help import ShortHelp, signature_of


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
