"""The errors that end a command with a line for its user."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_BAD_INPUT = 2


class UserError(Exception):
    """What keeps a command from its work. The message is one line that stands alone: what is wrong, where, what was
    expected, what to do. The command prints it to stderr and ends with `exit_status`.
    """

    exit_status = 1


class BadInput(UserError):
    """Input, configuration or disk that the run cannot work with."""

    exit_status = EXIT_BAD_INPUT


def did_you_mean(name: str, candidates: Iterable[str], prefix: str = "") -> str:
    """`"; did you mean 'x'?"` for the candidate nearest to `name`, shown with `prefix`, or an empty string."""
    matches = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return f"; did you mean '{prefix}{matches[0]}'?" if matches else ""
