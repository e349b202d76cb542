"""Configuration as text: YAML and `--set` in; YAML with comments and the documentation's table out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from geocomm.core.bad_input import BadInput, did_you_mean
from geocomm.core.model_errors import Location, location_text, problem_text
from geocomm.train.train_config import RunConfig


def load_config(path: Path | None, assignments: Sequence[str] = ()) -> RunConfig:
    """The run described by the YAML file at `path` (all defaults if None), then changed by `key.sub=value` assignments.

    Raises BadInput for a missing or malformed file, an unknown field (naming the nearest one) or a wrong value.
    """
    values = _read_yaml(path) if path is not None else {}
    for assignment in assignments:
        _assign(values, assignment)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        assigned = {assignment.partition("=")[0].strip() for assignment in assignments}
        wrong = [
            f"{_origin(item, path, assigned)}: {problem_text(item, suggest=_suggestion)}" for item in error.errors()
        ]
        raise BadInput("; ".join(wrong)) from None


def _origin(item: Any, path: Path | None, assigned: set[str]) -> str:
    """Where the value stands that is wrong: in the file, or in an assignment of the command line."""
    dotted = ".".join(str(part) for part in item["loc"])
    if path is None:
        return "--set" if assigned else "the defaults"
    if any(dotted == key or dotted.startswith(f"{key}.") for key in assigned):
        return "--set"
    # Fields that do not fit together may stand in either.
    return str(path) if dotted or not assigned else f"{path} with --set"


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"configuration file {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"configuration file {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise BadInput(f"configuration file {path} is not YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise BadInput(f"configuration file {path} must hold `field: value` lines, not a {type(values).__name__}")
    return values


def _assign(values: dict[str, Any], assignment: str) -> None:
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise BadInput(f"--set {assignment}: expected key=value, for example --set training.steps=50")
    try:
        value = yaml.safe_load(text) if text else ""
    except yaml.YAMLError:
        value = text
    *parents, name = key.strip().split(".")
    for depth, parent in enumerate(parents):
        child = values.setdefault(parent, {})
        if child is None:
            child = values[parent] = {}
        if not isinstance(child, dict):
            raise BadInput(f"--set {assignment}: {'.'.join(parents[: depth + 1])} is a value, not a section")
        values = child
    values[name] = value


def _suggestion(location: Location) -> str:
    """The field that was meant: in the same section, of the same name in another, or of a like name anywhere."""
    *parents, last = map(str, location)
    section: type[BaseModel] = RunConfig
    for part in parents:
        section = _section(section.model_fields[part]) or section
    prefix = "".join(f"{part}." for part in parents)
    if near := did_you_mean(last, section.model_fields, prefix):
        return near
    names = [name for name, _ in _leaves(RunConfig)]
    same = next((name for name in names if name.rpartition(".")[2] == last), None)
    return f"; did you mean '{same}'?" if same else did_you_mean(location_text(location), names)


def _section(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a field that is a section; None for a value."""
    inner = field.annotation
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None


def _leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Dotted name and field of everything in `model` that is no section."""
    for name, field in model.model_fields.items():
        if inner := _section(field):
            yield from _leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def format_config(config: BaseModel, indent: int = 0) -> str:
    """`config` as YAML with each field's description as a comment; reading it back gives an equal configuration."""
    pad = "  " * indent
    lines = []
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        lines.append(f"{pad}# {field.description}")
        if isinstance(value, BaseModel):
            lines.append(f"{pad}{name}:")
            lines.append(format_config(value, indent + 1).rstrip("\n"))
        else:
            plain = config.model_dump(mode="json", include={name})[name]
            lines.append(f"{pad}{name}: {json.dumps(plain, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def field_table() -> str:
    """The Markdown table of all fields, as it stands in `docs/reference/run-config.md`."""
    rows = ["| field | default | meaning |", "|---|---|---|"]
    for name, field in _leaves(RunConfig):
        default = field.get_default(call_default_factory=True)
        if isinstance(default, Path):
            default = str(default)
        elif isinstance(default, tuple):
            default = list(default)
        rows.append(f"| `{name}` | `{json.dumps(default)}` | {(field.description or '').replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"
