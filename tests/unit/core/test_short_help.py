"""What `help()` shows of the settings."""

from __future__ import annotations

import pydoc
import re

import pytest
from pydantic import BaseModel

import geocomm

MOST_LINES = 130


@pytest.mark.parametrize("model", [geocomm.Options, geocomm.LocalSettings, geocomm.HookSettings])
def test_help_shows_the_fields_first_and_nothing_of_pydantic(model: type[BaseModel]) -> None:
    lines = pydoc.plain(pydoc.render_doc(model)).splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith(f" |  {model.__name__}("))
    end = next(number for number, line in enumerate(lines) if number >= begin and line.rstrip().endswith(")"))
    signature = "".join(lines[begin : end + 1])  # from Python 3.13 on a field a line
    assert len(lines) - (end - begin) <= MOST_LINES
    assert "Annotated" not in signature
    text = "\n".join(lines)
    attributes, methods = text.index("Attributes:"), text.index("Methods defined here:")
    for name in model.model_fields:
        assert f"{name}=" in signature
        assert re.search(rf"^ \|\s+{name}\b", text[attributes:methods], re.MULTILINE)
    assert "model_dump" not in text
    assert callable(model.model_validate)  # what is not shown is there
