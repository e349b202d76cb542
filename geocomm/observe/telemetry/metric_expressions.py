"""Expressions over metrics, as much of PromQL as the alerts need: one object is the rule's text and its own evaluation.

Two sides of an operation go together by equal labels. A comparison keeps what it holds for.
"""

from __future__ import annotations

import collections
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Labels = tuple[tuple[str, str], ...]
"""Sorted by name."""
Series = Mapping[Labels, float]
Samples = Mapping[str, Series]
"""Values at one moment, by metric."""

_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_COMPARISONS = {">": operator.gt, "<": operator.lt, "==": operator.eq}


class History:
    """The samples of now, and those before as far back as the expressions look."""

    def __init__(self, expressions: list[Expression]) -> None:
        self._kept: dict[str, tuple[float, collections.deque[tuple[float, Series]]]] = {}
        for leaf in (leaf for each in expressions for leaf in each.leaves()):
            if isinstance(leaf, _Least):
                longest = max(60 * leaf.minutes, self._kept[leaf.name][0] if leaf.name in self._kept else 0.0)
                self._kept[leaf.name] = (longest, collections.deque())
        self._at = -math.inf
        self._samples: Samples = {}

    def add(self, at: float, samples: Samples) -> None:
        """The samples of `at`, which is later than all before."""
        self._at, self._samples = at, samples
        for name, (window_s, kept) in self._kept.items():
            kept.append((at, samples.get(name, {})))
            while kept[0][0] < at - window_s:
                kept.popleft()

    def now(self, name: str) -> Series:
        """The values of a metric."""
        return self._samples.get(name, {})

    def least(self, name: str, window_s: float) -> Series:
        """The least values of a metric within the last `window_s`."""
        found: dict[Labels, float] = {}
        for at, series in self._kept[name][1]:
            if at >= self._at - window_s:
                for labels, value in series.items():
                    found[labels] = min(found.get(labels, math.inf), value)
        return found


class Expression(ABC):
    """Values by labels at a moment."""

    @abstractmethod
    def promql(self) -> str:
        """The expression in PromQL."""

    @abstractmethod
    def values(self, history: History) -> Series:
        """What it is now."""

    def leaves(self) -> Iterator[Expression]:
        """What it is made of in the end: metrics, their least values, and numbers."""
        yield self

    def __add__(self, other: Expression | float) -> Expression:
        return _Both("+", self, _expression(other))

    def __sub__(self, other: Expression | float) -> Expression:
        return _Both("-", self, _expression(other))

    def __mul__(self, other: Expression | float) -> Expression:
        return _Both("*", self, _expression(other))

    def __gt__(self, other: Expression | float) -> Expression:
        return _Both(">", self, _expression(other))

    def __lt__(self, other: Expression | float) -> Expression:
        return _Both("<", self, _expression(other))

    def equals(self, other: float) -> Expression:
        """Where it is exactly this."""
        return _Both("==", self, _expression(other))

    def __and__(self, other: Expression) -> Expression:
        return _Both("and", self, other)

    def magnitude(self) -> Expression:
        """Without its sign."""
        return _Magnitude(self)


@dataclass(frozen=True)
class MetricValue(Expression):
    """A metric as /metrics shows it; of a label, only one value of it."""

    name: str
    only: Labels = ()

    def promql(self) -> str:
        chosen = ",".join(f'{label}="{value}"' for label, value in self.only)
        return f"{self.name}{{{chosen}}}" if chosen else self.name

    def values(self, history: History) -> Series:
        wanted = set(self.only)
        return {labels: value for labels, value in history.now(self.name).items() if wanted <= set(labels)}

    def growth(self, minutes: float) -> Expression:
        """By how much a counter is above its least value of the last minutes. One that began anew counts from there:
        nothing is extrapolated, as Prometheus's `increase` does."""
        return self - _Least(self.name, minutes)


@dataclass(frozen=True)
class Always(Expression):
    """True, whatever the metrics are."""

    def promql(self) -> str:
        return "vector(1)"

    def values(self, history: History) -> Series:
        return {(): 1.0}


@dataclass(frozen=True)
class _Number(Expression):
    value: float

    def promql(self) -> str:
        return f"{self.value:.12g}"

    def values(self, history: History) -> Series:
        raise TypeError("a number has no labels")


@dataclass(frozen=True)
class _Least(Expression):
    name: str
    minutes: float

    def promql(self) -> str:
        return f"min_over_time({self.name}[{self.minutes:g}m])"

    def values(self, history: History) -> Series:
        return history.least(self.name, 60 * self.minutes)


@dataclass(frozen=True)
class _Magnitude(Expression):
    of: Expression

    def promql(self) -> str:
        return f"abs({self.of.promql()})"

    def values(self, history: History) -> Series:
        return {labels: abs(value) for labels, value in self.of.values(history).items()}

    def leaves(self) -> Iterator[Expression]:
        return self.of.leaves()


@dataclass(frozen=True)
class _Both(Expression):
    sign: str
    left: Expression
    right: Expression

    def promql(self) -> str:
        return f"{_in_brackets(self.left)} {self.sign} {_in_brackets(self.right)}"

    def values(self, history: History) -> Series:
        left = self.left.values(history)
        if isinstance(self.right, _Number):
            pairs = [(labels, value, self.right.value) for labels, value in left.items()]
        else:
            right = self.right.values(history)
            pairs = [(labels, value, right[labels]) for labels, value in left.items() if labels in right]
        if self.sign in _ARITHMETIC:
            return {labels: _ARITHMETIC[self.sign](one, other) for labels, one, other in pairs}
        holds = _COMPARISONS.get(self.sign, lambda _one, _other: True)  # and
        return {labels: one for labels, one, other in pairs if holds(one, other)}

    def leaves(self) -> Iterator[Expression]:
        yield from self.left.leaves()
        yield from self.right.leaves()


def _expression(value: Expression | float) -> Expression:
    return value if isinstance(value, Expression) else _Number(value)


def _in_brackets(part: Expression) -> str:
    return f"({part.promql()})" if isinstance(part, _Both) else part.promql()
