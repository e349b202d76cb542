"""Files of versions and layouts of weights that anybody may have written: they are read, or refused in one sentence,
in memory that is bounded by their size; and nothing that one says names a file outside of the stream's folder."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from hypothesis import given
from hypothesis import strategies as st

from geocomm.core.errors import DataError
from geocomm.weights.stream_version import (
    StreamFile,
    WeightVersion,
    frame_path,
    layout_path,
    read_layout,
    read_version,
    version_path,
)
from geocomm.weights.weight_layout import WeightLayout

_R = TypeVar("_R")
SHA, DIGEST = "a" * 64, "b" * 32
VERSION: dict[str, Any] = {
    "geocomm_weights": 1, "stream": DIGEST, "number": 7, "step": 3, "time": 1, "layout": SHA, "parts": [DIGEST],
    "base": SHA, "delta": [[SHA, 10, False]], "whole": [[SHA, 100, True]], "anchors": [2, 7], "readers": ["a"],
    "publisher": "a", "signature": ["x", "y"],
}  # fmt: skip
LAYOUT: dict[str, Any] = {
    "geocomm_layout": 1, "tensors": [["w", "bfloat16", [8, 2]]],
    "parts": [["bfloat16", [[0, [0, 0], [4, 2]], [0, [4, 0], [4, 2]]]]],
}  # fmt: skip

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(
    [SHA, DIGEST, "bfloat16", "../" * 3 + "etc/passwd", "/etc/passwd", "a\x00b", -1, 2**31, 2**63, 2**64, 1e308]
)  # fmt: skip
_ANY = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


def _places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of all values in it."""
    found = [path]
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        found += _places(value, (*path, key))
    return found


def _with(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """It, with another value there."""
    if not path:
        return value
    changed = content.copy()
    changed[path[0]] = _with(content[path[0]], path[1:], value)
    return changed


def _near(content: Any) -> st.SearchStrategy[Any]:
    """What has the shape of it: some values are others, a list is longer or a key is more."""

    @st.composite
    def made(draw: st.DrawFn) -> Any:
        near = content
        for _ in range(draw(st.integers(1, 3))):
            path = draw(st.sampled_from(_places(near)))
            there = near
            for key in path:
                there = there[key]
            kinds = [_ANY]
            if isinstance(there, list) and there:
                kinds += [st.just(there * 2), st.just(there[:-1]), st.just([*there, there[0], None])]
            if isinstance(there, dict):
                kinds += [st.just({**there, "more": 1}), st.just(dict(list(there.items())[1:]))]
            near = _with(near, path, draw(st.one_of(kinds)))
        return near

    return made()


def _bytes_of(content: Any) -> st.SearchStrategy[bytes]:
    whole = json.dumps(content).encode()

    def cut_at(at: int, many: int, new: bytes) -> bytes:
        return whole[:at] + new + whole[at + many :]

    cut = st.builds(cut_at, st.integers(0, len(whole)), st.integers(0, 8), st.binary(max_size=8))
    return st.binary() | cut | (_near(content) | _ANY).map(lambda one: json.dumps(one).encode())


def _read(read: Callable[[bytes], _R], content: bytes) -> _R | None:
    """What is read; None: it was refused, in a sentence."""
    try:
        return read(content)
    except DataError as error:
        text = str(error)
        assert text
        assert "\n" not in text
        assert len(text) < 500
        return None


def _version(content: bytes) -> WeightVersion:
    return read_version(content, 7, "here")


def _layout(content: bytes) -> WeightLayout:
    return read_layout(content, "here")


@given(_bytes_of(VERSION))
def test_any_version_is_read_or_refused_and_names_files_of_the_stream_alone(content: bytes) -> None:
    version = _read(_version, content)
    if version is None:
        return
    assert version.number == 7
    paths = [version_path(version.number), layout_path(version.layout)]
    paths += [frame_path(version.number, sha256) for sha256 in version.frames]
    paths += [version_path(number) for number in version.anchors]
    for path in paths:
        assert StreamFile.of(path) is not None
        assert ".." not in PurePosixPath(path).parts
        assert not path.startswith("/")


@given(_bytes_of(LAYOUT))
def test_any_layout_is_read_or_refused_and_covers_each_tensor_once(content: bytes) -> None:
    layout = _read(_layout, content)
    if layout is not None:
        elements = sum(box.elements for part in layout.parts for box in part.boxes)
        shapes = [tensor.shape for tensor in layout.tensors]
        assert elements == sum(_product(shape) for shape in shapes)


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product


def _large(kind: str, size: int) -> tuple[str, bool]:
    """A file of about so many bytes, and whether it is a version's."""
    many = {
        "empty digests": (VERSION, "parts", '""'), "empty frames": (VERSION, "whole", "[]"),
        "deltas that are whole": (VERSION, "delta", f'["{SHA}",1,1]'), "readers": (VERSION, "readers", '""'),
        "anchors": (VERSION, "anchors", "7"), "certificates": (VERSION, "signature", '""'),
        "long frame": (VERSION, "whole", f'["{SHA}",1,true{",0" * (size // 2)}]'),
        "tensors": (LAYOUT, "tensors", "[]"), "parts": (LAYOUT, "parts", "[]"),
        "boxes": (LAYOUT, "parts", f'["bfloat16",[{"[]," * (size // 3)}[]]]'),
        "shape": (LAYOUT, "tensors", f'["w","bfloat16",[{"0," * (size // 2)}0]]'),
    }  # fmt: skip
    if kind == "keys":
        return "{" + ",".join(f'"{at:x}":0' for at in range(size // 9)) + "}", True
    if kind == "depth":
        return "[" * size, True
    content, field, item = many[kind]
    count = max(1, size // (len(item) + 1))
    text = json.dumps(content | {field: "HERE"}).replace('"HERE"', "[" + ",".join([item] * count) + "]")
    return text, content is VERSION


KINDS = (
    *("empty digests", "empty frames", "deltas that are whole", "readers", "anchors", "certificates", "long frame"),
    *("tensors", "parts", "boxes", "shape", "keys", "depth"),
)
_SIZE = 1 << 20
_MOST = 96 * _SIZE


def _read_large() -> None:
    """For a process of its own."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MOST, used + _MOST))
    for kind in KINDS:
        print(kind, flush=True)
        text, is_version = _large(kind, _SIZE)
        assert _read(_version if is_version else _layout, text.encode()) is None


def test_memory_is_bounded_by_the_size_of_the_file() -> None:
    ended = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
    assert ended.stdout.splitlines() == [*KINDS]


if __name__ == "__main__":
    _read_large()
