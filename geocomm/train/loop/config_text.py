"""Configuration as text: YAML and `--set` in; YAML with comments out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from geocomm.core.bad_input import BadInput, Location, did_you_mean, location_text, problem_text
from geocomm.core.settings import field_text
from geocomm.train.loop.train_config import RunConfig

MODE = "mode"
"""The field by which a section of several modes says which one it is."""


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
        items = [{**item, "loc": _without_mode(item["loc"])} for item in error.errors()]
        wrong = [f"{_origin(item, path, assigned)}: {problem_text(item, suggest=_suggestion)}" for item in items]
        raise BadInput("; ".join(wrong)) from None


def _origin(item: Any, path: Path | None, assigned: set[str]) -> str:
    """Where the value stands that is wrong: in the file, or in an assignment of the command line."""
    dotted = ".".join(str(part) for part in item["loc"])
    if path is None:
        return "--set" if assigned else "the defaults"
    if any(dotted == key or dotted.startswith(f"{key}.") for key in assigned):
        return "--set"
    # Fields that do not fit together may stand in either.
    in_either = any(not dotted or key.startswith(f"{dotted}.") for key in assigned)
    return f"{path} with --set" if in_either else str(path)


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
    fields = RunConfig.model_fields
    for part in parents:
        fields = {
            name: field for one in sections_of(fields[part]) for name, field in one.model_fields.items()
        } or fields
    prefix = "".join(f"{part}." for part in parents)
    if near := did_you_mean(last, fields, prefix):
        return near
    names = list(dict.fromkeys(_value_names(RunConfig)))
    same = next((name for name in names if name.rpartition(".")[2] == last), None)
    return f"; did you mean '{same}'?" if same else did_you_mean(location_text(location), names)


def sections_of(field: FieldInfo) -> list[type[BaseModel]]:
    """The model of a field that is a section, one for each of its modes; none for a value."""
    kinds = get_args(field.annotation) or (field.annotation,)
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _without_mode(location: Location) -> Location:
    """Where a value stands in the document. Pydantic puts the mode between a section of several modes and its field."""
    field = RunConfig.model_fields.get(str(location[0])) if location else None
    return location[:1] + location[2:] if field is not None and len(sections_of(field)) > 1 else location


def fields_of(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """The fields of a section; the mode is the first."""
    return sorted(model.model_fields.items(), key=lambda item: item[0] != MODE)


def _value_names(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted names of everything in `model` that is no section; what several modes have comes as often."""
    for name, field in model.model_fields.items():
        sections = sections_of(field)
        for section in sections:
            yield from _value_names(section, f"{prefix}{name}.")
        if not sections:
            yield f"{prefix}{name}"


def format_config(config: BaseModel, indent: int = 0) -> str:
    """`config` as YAML with each field's description as a comment; reading it back gives an equal configuration."""
    pad = "  " * indent
    lines = []
    for name, field in fields_of(type(config)):
        value = getattr(config, name)
        lines.append(f"{pad}# {field_text(field.description)}")
        if isinstance(value, BaseModel):
            lines.append(f"{pad}{name}:")
            lines.append(format_config(value, indent + 1).rstrip("\n"))
        else:
            plain = config.model_dump(mode="json", include={name})[name]
            lines.append(f"{pad}{name}: {json.dumps(plain, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"
