"""What a pydantic model refused, in a sentence for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pydantic import ValidationError

from geocomm.core.bad_input import did_you_mean

Location = tuple[int | str, ...]


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
