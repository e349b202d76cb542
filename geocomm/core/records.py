"""Records that travel between processes or are kept, as canonical JSON."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from geocomm.core.bad_input import first_problem, problem_text

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256, as hexadecimal digits."""
Whole = Annotated[int, Field(ge=0, lt=2**63)]
MAX_TEXT = 4096
MOST_FRAGMENTS = 4096
"""Of a model, in local steps: every line that says something of each stays below MAX_LINE_BYTES of `message_lines`."""
Text = Annotated[str, Field(max_length=MAX_TEXT)]
MANY = Field(fail_fast=True)
"""For a tuple of any length that anybody may have written: the first item that is wrong ends the look at it. Else each
would take a thousand bytes of memory."""
_MOST_SAID = 300


class Record(BaseModel):
    """What travels or is kept: fields are never changed, and unknown ones are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


_R = TypeVar("_R", bound=Record)


def read_record(kind: type[_R], content: bytes) -> _R:
    """The record in a file that anybody may have written. ValueError: it is none; the text says what is wrong first."""
    try:
        said: Any = from_json(content)
        names = cast("dict[str, Any]", said).keys() if isinstance(said, dict) else set[str]()
        if unknown := names - kind.model_fields.keys():  # each would be an error of its own
            raise ValueError(f"unknown key {min(unknown)!r:.80}; possible are {', '.join(kind.model_fields)}")
        return kind.model_validate(said)
    except ValidationError as error:
        raise ValueError(problem_text(first_problem(error))[:_MOST_SAID]) from None


def line_of(record: Record) -> str:
    """The record as canonical JSON, without a line feed."""
    return canonical(record.model_dump(mode="json"))


def canonical(content: Any) -> str:
    """JSON in one way only: equal contents have equal texts."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
