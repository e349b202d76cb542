"""Files of lines of JSON that another process writes to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines so far; none, where there is no file yet. One that is being written is none yet."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
