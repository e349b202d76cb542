"""Quantities as people write them, with a unit: rates, durations, probabilities, sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from geocomm.core.bad_input import BadInput

DAY_S = 86400.0
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class UnitError(BadInput, ValueError):
    """A text is not a quantity of its kind; the message names the field."""


def _parse(field: str, text: str | float, units: Mapping[str, float], example: str, bare_unit: float | None) -> float:
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        text = str(text)
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z%/]*)\s*", str(text))
    unit = match[2].lower() if match else ""
    factor = bare_unit if not unit else units.get(unit)
    if match is None or factor is None:
        known = ", ".join(units)
        raise UnitError(f"{field}: {text!r} is not a number with one of the units {known} (for example {example})")
    return float(match[1]) * factor


def parse_rate(text: str | float, field: str = "rate") -> float:
    """Bits per second of "1gbit", "200mbit", "64kbit" or a bare number of bits per second."""
    units = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
    return _parse(field, text, units | {f"{name}/s": value for name, value in units.items()}, "1gbit", 1.0)


def parse_duration(text: str | float, field: str = "rtt") -> float:
    """Seconds of "100ms", "0.3s" or "500us", as of a link. The unit must be said, except with 0."""
    bare = 1.0 if str(text).strip() in ("0", "0.0") else None
    return _parse(field, text, _TIMES, "100ms", bare)


def parse_wait(text: str | float, field: str = "duration") -> float:
    """Seconds of "90s", "2min" or a bare number of seconds, as of how long to wait."""
    return _parse(field, text, _TIMES | {"min": 60.0, "h": 3600.0}, "90s", 1.0)


def parse_probability(text: str | float, field: str = "loss") -> float:
    """Probability of "0.1%" or of a bare probability such as 0.001."""
    probability = _parse(field, text, {"%": 0.01}, "0.1%", 1.0)
    if probability > 1:
        raise UnitError(f"{field}: {text!r} is more than 100 %")
    return probability


def parse_size(text: str | float, field: str = "queue") -> int:
    """Bytes of "256kb", "4mb", "4mib" or a bare number of bytes."""
    units = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 1024.0, "mib": 1024.0**2, "gib": 1024.0**3}
    return round(_parse(field, text, units, "4mb", 1.0))


def duration_text(seconds: float, form: str = ".0f") -> str:
    """A duration for people, in the largest unit of which it has two: "3 d", "119 min". form: of the number."""
    for unit, size in (("d", DAY_S), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:{form}} {unit}"
    return f"{seconds:{form}} s"


def count_text(number: int, thing: str) -> str:
    """`1 rank`, `2 ranks`: a number of things, for people."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def named_text(thing: str, names: Sequence[str]) -> str:
    """`site a`, `sites a, b`: things by name, for people."""
    return f"{thing}{'' if len(names) == 1 else 's'} {', '.join(names)}"


def large_text(number: int) -> str:
    """A number that may be large, for people: `12345`, `1.23 M`, `4.56 G`."""
    if number < 1_000_000:
        return str(number)
    return f"{number / 1e9:.2f} G" if number >= 1e9 else f"{number / 1e6:.2f} M"


def rate_text(bps: float) -> str:
    """`1.2 Gbit/s`."""
    return _with_unit(bps, (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0)))


def bytes_text(count: float) -> str:
    """`1.2 GB`."""
    return _with_unit(count, (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)))


def _with_unit(value: float, units: Sequence[tuple[str, float]]) -> str:
    """In the largest unit of which it has one."""
    unit, size = next((one for one in units if value >= one[1]), units[-1])
    return f"{value / size:.3g} {unit}"


def parse_boolean(text: str) -> bool:
    """Whether "1", "true", "yes", "on", or "0", "false", "no", "off", "" means yes."""
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off", ""):
        return False
    raise UnitError(f"{text!r} is neither 1 (true) nor 0 (false)")
