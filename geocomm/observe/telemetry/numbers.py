"""Numbers of a run, each declared once: as a field of the class whose rows have it.

A row is of a site, of a link, or of what else has numbers. The field says what the number is, what Prometheus calls it,
and how it follows from what ranks report. Rows, `/metrics`, the files for Grafana, the alerts with their PromQL and the
tooltips of the page are made from that.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

Labels = tuple[tuple[str, str], ...]
"""Sorted by name."""


@dataclasses.dataclass(frozen=True)
class Number:
    """What is known of a number, but for its value."""

    metric: str | None
    """Its name at `/metrics`, without the prefix of its rows and `_total`; None: it is not there."""
    help: str
    is_counter: bool
    add_up: Callable[[Any], Any] | None
    """Makes it of what the rows' ranks report; None: whoever makes a row says it."""


class NumberRow:
    """A dataclass whose fields are made by `gauge` and `counter`, and perhaps others."""

    PREFIX: ClassVar[str] = "geocomm_"
    LABELS: ClassVar[tuple[str, ...]] = ()
    """The names of what tells rows apart."""

    @classmethod
    @functools.cache
    def numbers(cls) -> Mapping[str, Number]:
        """The numbers of a row, by field."""
        fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        return {one.name: one.metadata["number"] for one in fields if "number" in one.metadata}

    @classmethod
    def added_up(cls, of: Any) -> dict[str, Any]:
        """The fields that say how they follow from what ranks report."""
        return {name: one.add_up(of) for name, one in cls.numbers().items() if one.add_up}

    @classmethod
    def metric(cls, field: str) -> str:
        """The whole name of a number's samples in Prometheus. KeyError: it has none."""
        number = cls.numbers()[field]
        if number.metric is None:
            raise KeyError(f"{cls.__name__}.{field} is not at /metrics")
        return cls.PREFIX + number.metric + ("_total" if number.is_counter else "")


def gauge(text: str, add_up: Callable[[Any], Any] | None = None) -> Any:
    """A field with the value of now. text: `metric: help`, or the help alone of what is not at `/metrics`."""
    return _field(text, add_up, is_counter=False)


def counter(text: str, add_up: Callable[[Any], Any] | None = None) -> Any:
    """A field with a total since the processes started; likewise."""
    return _field(text, add_up, is_counter=True)


def _field(text: str, add_up: Callable[[Any], Any] | None, *, is_counter: bool) -> Any:
    metric, colon, help = text.partition(": ")
    if not colon or not re.fullmatch(r"\w+", metric):
        metric, help = None, text
    return dataclasses.field(metadata={"number": Number(metric, help, is_counter, add_up)})
