"""Messages of an elastic run as lines of JSON, of at most MAX_LINE_BYTES, and back."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from geocomm.core.records import line_of
from geocomm.elastic.journal.entries import BadLineError
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.messages import PART_CHARS, PROTOCOL_VERSION, Down, EntrySaid, StatePart, Up
from geocomm.elastic.journal.run_state import RunState

MAX_LINE_BYTES = 1 << 20
MAX_UP_BYTES = MAX_LINE_BYTES // 2
"""The longest line of a site: where the leader says it on, with a little more, that fits a line too."""

_T = TypeVar("_T")
_UP: TypeAdapter[Up] = TypeAdapter(Up)
_DOWN: TypeAdapter[Down] = TypeAdapter(Down)


class OtherProtocolError(BadLineError):
    """The site speaks another version of this protocol."""


def parts_of(state: RunState) -> Iterator[StatePart]:
    """A state for a site, in lines."""
    text = state.text
    for start in range(0, len(text), PART_CHARS):
        yield StatePart(text=text[start : start + PART_CHARS], last=start + PART_CHARS >= len(text))


def journal_said(journal: SqliteJournal, first: int) -> Iterator[str]:
    """What a site is sent that lacks the entries from `first` on, up to those that are here now. BadLineError,
    sqlite3.Error, while they are made: the file is damaged."""
    state, last = journal.state_for(first), journal.head.index
    if state is not None:
        first = state.head.index + 1
    return itertools.chain(
        () if state is None else map(said, parts_of(state)), map(entry_said, journal.lines(first, last))
    )


def up_of(line: str | bytes) -> Up:
    """What a site said. Raises BadLineError for anything else."""
    try:
        return _parsed(_UP, line, MAX_UP_BYTES)
    except BadLineError:
        if (spoken := _protocol_of(line)) not in (None, PROTOCOL_VERSION):
            raise OtherProtocolError(
                f"protocol: it speaks {spoken}, and this is {PROTOCOL_VERSION}; install the same version of geocomm at "
                "all sites"
            ) from None
        raise


def down_of(line: str | bytes) -> Down:
    """What the leader, or the agent, said. Raises BadLineError for anything else."""
    return _parsed(_DOWN, line, MAX_LINE_BYTES)


def said(message: Up | Down) -> str:
    """The line that says it. Raises BadLineError for one that the other end would not take."""
    line = entry_said(message.entry.line) if isinstance(message, EntrySaid) else line_of(message)
    _check_length(len(line.encode()), MAX_LINE_BYTES)
    return line


def entry_said(line: str) -> str:
    """The line of an EntrySaid, of that of its entry."""
    return f'{{"entry":{line},"kind":"entry"}}'


def _check_length(size: int, most: int) -> None:
    if size > most:
        raise BadLineError(f"a line of {size} bytes; the most is {most}")


def _protocol_of(line: str | bytes) -> int | None:
    """The protocol's version of a Hello, whichever it is."""
    try:
        content = json.loads(line[:MAX_LINE_BYTES])
        return int(content["protocol"]) if content["kind"] == "hello" else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _parsed(adapter: TypeAdapter[_T], line: str | bytes, most: int) -> _T:
    _check_length(len(line), most)
    try:
        return adapter.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadLineError(f"not a message of an elastic run: {first['msg']} at {first['loc']}") from None
