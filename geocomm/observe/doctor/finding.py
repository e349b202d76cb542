"""One line of what `geocomm doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How bad it is. A bad finding keeps a job from running; a warning costs speed or will be bad one day."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """What was looked at, what was there, and, where that is not right, what to do."""

    name: str
    value: str
    state: State
    fix: str = ""
