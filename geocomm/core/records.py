"""Records that travel between processes or are kept, as canonical JSON."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256, as hexadecimal digits."""
Whole = Annotated[int, Field(ge=0, lt=2**63)]
MAX_TEXT = 4096
MOST_FRAGMENTS = 4096
"""Of a model, in local steps: every line that says something of each stays below MAX_LINE_BYTES of `message_lines`."""
Text = Annotated[str, Field(max_length=MAX_TEXT)]


class Record(BaseModel):
    """What travels or is kept: fields are never changed, and unknown ones are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def line_of(record: Record) -> str:
    """The record as canonical JSON, without a line feed."""
    return canonical(record.model_dump(mode="json"))


def canonical(content: Any) -> str:
    """JSON in one way only: equal contents have equal texts."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
