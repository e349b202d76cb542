"""Conditions of alerts: Python over the numbers of a row, which writes itself in PromQL when it is given `Written`.

    lambda site: (site.no_step_seconds > 60) & (site.no_step_seconds > site.mean_step_seconds * 5)

Only what both have may stand in one: `+ - * > < ==`, `&` for and, `abs`, and `grown(minutes)`.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from typing import Any

from geocomm.observe.telemetry.numbers import Labels, NumberRow
from geocomm.observe.telemetry.run_numbers import Rows

Condition = Callable[[Any], Any]
"""Of `Numbers`, whether it holds; of `Written`, a `Term`."""
LookBack = tuple[type[NumberRow], str]


class Numbers:
    """The numbers of a row, by field; NaN for one that is not known: no comparison holds of it."""

    def __init__(self, read: Callable[[str, float | None], float | None], minutes: float | None = None) -> None:
        self._read, self._minutes = read, minutes

    def __getattr__(self, field: str) -> float:
        value = self._read(field, self._minutes)
        return math.nan if value is None else float(value)

    def grown(self, minutes: float) -> Numbers:
        """By how much counters are above their least value of the last minutes. One that began anew counts from there:
        nothing is extrapolated, as Prometheus's `increase` does."""
        return Numbers(self._read, minutes)


class Term:
    """A part of a condition, in PromQL."""

    def __init__(self, text: str, *, is_whole: bool = False) -> None:
        """is_whole: it needs no brackets beside other parts."""
        self.text = text
        self._bracketed = text if is_whole else f"({text})"

    def _with(self, sign: str, other: Term | float) -> Term:
        right = other._bracketed if isinstance(other, Term) else f"{other:.12g}"
        return Term(f"{self._bracketed} {sign} {right}")

    def __add__(self, other: Term | float) -> Term:
        return self._with("+", other)

    def __sub__(self, other: Term | float) -> Term:
        return self._with("-", other)

    def __mul__(self, other: Term | float) -> Term:
        return self._with("*", other)

    def __gt__(self, other: Term | float) -> Term:
        return self._with(">", other)

    def __lt__(self, other: Term | float) -> Term:
        return self._with("<", other)

    def __eq__(self, other: object) -> Any:
        return self._with("==", other if isinstance(other, Term) else float(str(other)))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __and__(self, other: Term) -> Term:
        return self._with("and", other)

    def __abs__(self) -> Term:
        return Term(f"abs({self.text})", is_whole=True)


class Written:
    """Stands for the numbers of a row where a condition is written in PromQL."""

    def __init__(self, of: type[NumberRow], chosen: str, looks_back: dict[LookBack, float] | None = None) -> None:
        """chosen: the one kind of row that is meant, as PromQL has it. looks_back: is told of numbers whose past is
        needed, and of how many minutes."""
        self._of, self._chosen, self._looks_back = of, chosen, {} if looks_back is None else looks_back
        self._minutes: float | None = None

    def __getattr__(self, field: str) -> Term:
        name = self._of.metric(field) + self._chosen
        if self._minutes is None:
            return Term(name, is_whole=True)
        key = (self._of, field)
        self._looks_back[key] = max(self._minutes, self._looks_back.get(key, 0.0))
        return Term(f"{name} - min_over_time({name}[{self._minutes:g}m])")

    def grown(self, minutes: float) -> Written:
        """Likewise of `Numbers.grown`."""
        grown = Written(self._of, self._chosen, self._looks_back)
        grown._minutes = minutes
        return grown


class Past:
    """The values of some counters, as far back as conditions look."""

    def __init__(self, looks_back: dict[LookBack, float]) -> None:
        self._kept: dict[LookBack, collections.deque[tuple[float, dict[Labels, float]]]] = {
            key: collections.deque() for key in looks_back
        }
        self._minutes = looks_back
        self._at = -math.inf

    def add(self, at: float, rows: Rows) -> None:
        """The rows of `at`, which is later than all before."""
        self._at = at
        for (kind, field), kept in self._kept.items():
            values = {labels: getattr(row, field) for labels, row in rows.get(kind, {}).items()}
            kept.append((at, {labels: value for labels, value in values.items() if value is not None}))
            while kept[0][0] < at - 60 * self._minutes[kind, field]:
                kept.popleft()

    def numbers(self, kind: type[NumberRow], labels: Labels, row: NumberRow) -> Numbers:
        """The numbers of a row of now."""

        def read(field: str, minutes: float | None) -> float | None:
            now = getattr(row, field)
            if minutes is None or now is None:
                return now
            since = self._at - 60 * minutes
            return now - min(one[labels] for at, one in self._kept[kind, field] if at >= since and labels in one)

        return Numbers(read)
