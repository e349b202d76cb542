"""The lines of reports, each as its shape and its numbers.

A line is JSON of one key, its kind. What a rank says a second later has the same shape, the text without its numbers.
So the shape is kept and sent once, and of the next line its numbers alone.
"""

from __future__ import annotations

import re
from array import array
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

Row = dict[str, Any]
Kind = Literal["head", "stats", "training", "step", "operation", "round", "event"]

_TOKEN = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WHOLE, _MOMENT, _DECIMAL, _SMALL = (bytes([i]) for i in range(4))
"""What stands for a number in a shape. JSON has no such bytes."""
_HOLE = re.compile(b"[\0-\3]")
_MOMENT_UNIT, _LEAST_MOMENT = 100_000, 10**11
"""Nanoseconds; reports round moments to them. Shorter numbers may end with as many zeros by chance."""
_SCALES = {_DECIMAL: 1e4, _SMALL: 1e10}
_MOST = 1 << 62
_LINE = TypeAdapter(dict[Kind, Row])


class BadReportError(ValueError):
    """What should be a report is none."""


class Shape:
    """The text of a line with holes for its numbers. All numbers make valid lines of it."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.kind = text[2 : text.index(b'"', 2)].decode()
        holes: list[bytes] = _HOLE.findall(text)
        self.holes = len(holes)
        self._moments = [i for i, hole in enumerate(holes) if hole == _MOMENT]
        self._scales = [(i, _SCALES[hole]) for i, hole in enumerate(holes) if hole in _SCALES]
        self._template = _HOLE.sub(lambda hole: b"%a" if hole[0] in _SCALES else b"%d", text.replace(b"%", b"%%"))

    @property
    def memory(self) -> int:
        """About how many bytes a line of it takes."""
        return 4 * len(self.text) + 8 * self.holes

    def filled(self, numbers: array[int]) -> bytes:
        """The line that has these numbers."""
        values: list[Any] = numbers.tolist()
        for i in self._moments:
            values[i] *= _MOMENT_UNIT
        for i, scale in self._scales:
            values[i] /= scale
        return self._template % tuple(values)


class Line(NamedTuple):
    """One line of a report."""

    shape: Shape
    numbers: array[int]

    @property
    def text(self) -> bytes:
        """As JSON."""
        return self.shape.filled(self.numbers)

    @property
    def row(self) -> Row:
        """What it says, without the kind."""
        (row,) = _LINE.validate_json(self.text).values()
        return row


def read_line(text: bytes) -> Line:
    """A line of a report. Raises BadReportError for what is none."""
    try:
        kinds = [*_LINE.validate_json(text)]
    except ValidationError as error:
        raise BadReportError(f"no report: {error.errors()[0]['msg']}") from None
    if len(kinds) != 1 or not text.startswith(b'{"%b":' % kinds[0].encode()):
        raise BadReportError("no report: a line has one key, first of all")
    numbers = array("q")
    if b"\\" in text:  # the number of an escaped character is none
        return Line(Shape(text), numbers)
    return Line(Shape(_TOKEN.sub(lambda token: _hole(token[0], numbers), text)), numbers)


def _hole(token: bytes, numbers: array[int]) -> bytes:
    """What stands for a number, which is added to the others. One that is written in another way stays."""
    if token.lstrip(b"-").isdigit():
        number = int(token) if len(token) < 20 else _MOST
        if abs(number) >= _MOST or b"%d" % number != token:
            return token
        moment = number >= _LEAST_MOMENT and number % _MOMENT_UNIT == 0
        numbers.append(number // _MOMENT_UNIT if moment else number)
        return _MOMENT if moment else _WHOLE
    value = float(token)
    for hole, scale in _SCALES.items():
        if abs(value) * scale < _MOST and b"%a" % ((number := round(value * scale)) / scale) == token:
            numbers.append(number)
            return hole
    return token
