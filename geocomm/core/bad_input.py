"""The errors that end a command with a line for its user; and what a pydantic model refused, in such a line."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

EXIT_BAD_INPUT = 2

Location = tuple[int | str, ...]
"""Where in a document something is: names of fields, and numbers of items."""


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


def first_problem(error: ValidationError) -> Any:
    """pydantic's record of the first thing that is wrong."""
    return error.errors(include_url=False)[0]


def problem_text(problem: Any, known: Iterable[str] = (), suggest: Callable[[Location], str] | None = None) -> str:
    """Field and what is wrong with it: "rate: 'fast' is not ...".

    known: the fields where an unknown one stands, all named. suggest: for a document of too many fields to name, what
    to say after an unknown one, such as "; did you mean 'training.steps'?".
    """
    location: Location = problem["loc"]
    name = location_text(location)
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        if suggest is not None:
            return f"unknown field '{name}'{suggest(location)}"
        last = str(location[-1])
        return f"unknown key {last!r}{did_you_mean(last, known)}; possible are {', '.join(known)}"
    if problem["type"] == "missing":
        return f"{name} is missing"
    cause = problem.get("ctx", {}).get("error")
    text = problem["msg"] if cause is None else str(cause)
    if cause is None:
        text += f" (got {problem['input']!r})"
    return f"{name}: {text.removeprefix(f'{name}: ')}" if name else text


def location_text(location: Location) -> str:
    """A location as a person writes it: rate_bps[1][2]."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")
