"""What `help()` and editors show of a pydantic model of the public API: its fields, and its own methods."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

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
