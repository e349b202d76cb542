"""What a lying member may say: every message of a protocol, with every field at its edges and beyond, one at a time.

Made from the messages' own schema, so that a new message or field is lied in without a line here.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter

NUMBERS = (0, -1, 2**40, 2**53, 2**63 - 1, 2**64)
TEXTS = ("", "\0/../\x1b[2J")
_MANY = 5000
"""Of a list without a limit."""
_LENGTHS = (1, 32, 64, 255, 263, 4096)
Schema = dict[str, Any]
Path = tuple[str | int, ...]


class Lie(NamedTuple):
    """A message that is true but for one field."""

    kind: str
    path: Path
    content: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.kind}.{'.'.join(map(str, self.path))}={_at(self.content, self.path)!r:.60}"


def kinds_of(adapter: TypeAdapter[Any]) -> list[str]:
    """Of the messages of a protocol."""
    return sorted(adapter.json_schema()["discriminator"]["mapping"])


def truth(adapter: TypeAdapter[Any], kind: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """A message that is well formed. kind: empty where the protocol has one alone. known: what fields of these names
    have, in whichever message."""
    schema = adapter.json_schema()
    return _example(schema, _of_kind(schema, kind), known) | ({"kind": kind} if kind else {})


def lies(adapter: TypeAdapter[Any], kind: str, known: Mapping[str, Any]) -> Iterator[Lie]:
    """All that differ from the truth in one field."""
    schema, true = adapter.json_schema(), truth(adapter, kind, known)
    for path, value in _values(schema, _of_kind(schema, kind), true, ()):
        if path != ("kind",):
            content = copy.deepcopy(true)
            _at(content, path[:-1])[path[-1]] = value
            yield Lie(kind, path, content)


def _of_kind(schema: Schema, kind: str) -> Schema:
    if not kind:
        return schema
    return _resolved(schema, {"$ref": schema["discriminator"]["mapping"][kind]})


def _resolved(schema: Schema, node: Schema) -> Schema:
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return node


def _at(content: Any, path: Path) -> Any:
    for step in path:
        content = content[step]
    return content


def _example(schema: Schema, node: Schema, known: Mapping[str, Any]) -> Any:
    node = _resolved(schema, node)
    if choices := node.get("anyOf", node.get("oneOf")):
        return _example(schema, choices[0], known)
    if "const" in node or "default" in node:
        return node.get("const", node.get("default"))
    match node.get("type"):
        case "object" if "properties" in node:
            fields = {name: known.get(name) for name in node["properties"] if name in known}
            return {name: _example(schema, one, known) for name, one in node["properties"].items()} | fields
        case "object":
            return {}
        case "array":
            return [_example(schema, _item(node), known)] * max(1, node.get("minItems", 0))
        case "string":
            return _fitting(node)[0]
        case "integer" | "number":
            return node.get("minimum", 0)
        case "boolean":
            return False
        case _:
            raise AssertionError(f"no example of {node}")


def _item(node: Schema) -> Schema:
    return node["prefixItems"][0] if "prefixItems" in node else node["items"]


def _fitting(node: Schema) -> list[str]:
    """Texts that the field takes, the longest last."""
    pattern, most = node.get("pattern", ""), node.get("maxLength", 4096)
    tried = (one * length for length in (*_LENGTHS, most) for one in ("a", "0") if length <= most)
    return sorted((one for one in tried if re.search(pattern, one)), key=len)


def _values(schema: Schema, node: Schema, true: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    node = _resolved(schema, node)
    for choice in node.get("anyOf", node.get("oneOf", ())):
        yield from _values(schema, choice, true, path)
    match node.get("type"):
        case "object" if "properties" in node:
            if path:
                yield path, {}
            for name, one in node["properties"].items():
                yield from _values(schema, one, None if true is None else true.get(name), (*path, name))
        case "object":
            value = _example(schema, node["additionalProperties"], {})
            for names in ([], [str(n) for n in range(-1, 63)], [str(n) for n in range(_MANY)], ["\0/..", str(2**63)]):
                yield path, dict.fromkeys(names, value)
            for name, one in (true if isinstance(true, dict) else {}).items():
                yield from _values(schema, node["additionalProperties"], one, (*path, name))
        case "array":
            item = true[0] if true else _example(schema, _item(node), {})
            for count in {0, node.get("maxItems", _MANY), node.get("maxItems", _MANY) + 1}:
                yield path, [item] * count
            if true:
                yield from _values(schema, _item(node), true[0], (*path, 0))
        case "string":
            for text in {*TEXTS, *_fitting(node)[-2:], _fitting(node)[-1] * 2}:
                yield path, text
        case "integer" | "number" as kind:
            bounds = [node[name] for name in ("minimum", "maximum", "exclusiveMaximum") if name in node]
            numbers: list[float] = [*NUMBERS, *(bound + by for bound in bounds for by in (-1, 0, 1))]
            if kind == "number":
                numbers += [1e308, 1e-308]
            for number in dict.fromkeys(numbers):
                yield path, number
        case "boolean":
            yield path, not true
        case "null":
            yield path, None
        case _:
            pass
