"""The lists of options and of a run's fields in docs/reference, as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from geocomm.core.environment import OTHER_VARIABLES
from geocomm.core.options import option_rows
from geocomm.core.settings import field_text
from geocomm.train.loop.config_text import MODE, fields_of, sections_of
from geocomm.train.loop.train_config import MODES, RunConfig

_GROUPS = {
    "site": "Sites",
    "codec": "Codec",
    "transport": "Transport and security",
    "streams": "Connections",
    "threads": "Work and waits",
    "metrics_port": "Reports",
}
"""Headings of the documentation, each by the first field below it."""


def option_list() -> str:
    """The options as Markdown lists under headings, for docs/reference."""
    parts: list[str] = []
    for variable, name, wanted, default, meaning in option_rows():
        if name in _GROUPS:
            parts.append(("\n" if parts else "") + f"### {_GROUPS[name]}\n\n")
        told = f"{meaning}; {wanted}" if _tells_a_range(wanted) else meaning
        parts.append(_item(f"`{name}`, `{variable}`", default, told))
    return "".join(parts)


def variable_list() -> str:
    """The variables that are no options, as a Markdown list."""
    return "".join(_item(f"`{name}`", default, meaning) for name, default, meaning in OTHER_VARIABLES)


def _item(names: str, default: str, meaning: str) -> str:
    return f"- {names}{f' ({default})' if default else ''}: {meaning}\n"


def _tells_a_range(wanted: str) -> bool:
    return any(word in wanted for word in ("from", "least", "or more", "letters"))


@dataclass(frozen=True)
class _Leaf:
    """A value of the document."""

    name: str
    """Dotted."""
    field: FieldInfo
    mode: str | None = None
    """The mode that alone has it so."""


def _leaves(model: type[BaseModel], prefix: str = "") -> Iterator[_Leaf]:
    """Everything in `model` that is no section, in the order of the document."""
    for name, field in fields_of(model):
        modes = sections_of(field)
        if len(modes) > 1:
            yield from _leaves_by_mode(modes, f"{prefix}{name}.")
        elif modes:
            yield from _leaves(modes[0], f"{prefix}{name}.")
        else:
            yield _Leaf(f"{prefix}{name}", field)


def _leaves_by_mode(modes: Sequence[type[BaseModel]], prefix: str) -> Iterator[_Leaf]:
    """The fields of a section that differs by its mode; the first mode is the default."""
    first = modes[0]
    shared = [name for name, _ in fields_of(first) if all(_is_same(name, first, one) for one in modes)]
    for name in shared:
        yield _Leaf(f"{prefix}{name}", first.model_fields[name])
    for model in modes:
        mode = model.model_fields[MODE].default
        yield from (_Leaf(f"{prefix}{name}", field, mode) for name, field in fields_of(model) if name not in shared)


def _is_same(name: str, one: type[BaseModel], other: type[BaseModel]) -> bool:
    """Whether a field is the same in two modes."""
    mine, theirs = one.model_fields[name], other.model_fields.get(name)
    is_it = theirs is not None and (mine.default, mine.description) == (theirs.default, theirs.description)
    return name == MODE or is_it


def _is_inherited(leaf: _Leaf) -> bool:
    """Whether a field of a mode is that of the settings which the mode extends."""
    if leaf.mode is None:
        return False
    extended = cast(type[BaseModel], MODES[leaf.mode].__mro__[1])
    field = extended.model_fields.get(leaf.name.rpartition(".")[2])
    return field is not None and field.description == leaf.field.description


def config_lists() -> dict[str | None, str]:
    """The Markdown lists of `docs/reference/run-config.md`: the fields of every run under None, then each mode's.

    Fields that a mode has from the settings of geocomm's own functions, which another page explains, are one item.
    """
    items: dict[str | None, list[str]] = {}
    untold: dict[str | None, list[str]] = {}
    for leaf in _leaves(RunConfig):
        default: Any = leaf.field.get_default(call_default_factory=True)
        if isinstance(default, Path):
            default = str(default)
        elif isinstance(default, tuple):
            default = list(cast(tuple[Any, ...], default))
        item = f"`{leaf.name}` (`{json.dumps(default)}`)"
        if _is_inherited(leaf):
            untold.setdefault(leaf.mode, []).append(item)
        else:
            items.setdefault(leaf.mode, []).append(f"- {item}: {field_text(leaf.field.description)}\n")
    for mode, fields in untold.items():
        items[mode].append(f"- {', '.join(fields)}\n")
    return {mode: "".join(lines) for mode, lines in items.items()}
