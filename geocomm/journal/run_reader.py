"""What the journal of a run folder says, for who looks at it again and again while others write it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from geocomm.journal.journal import SqliteJournal
from geocomm.journal.run_state import RunState

_T = TypeVar("_T")


class RunReader:
    """Reads each entry once. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: RunState | None = None
        self._lock = threading.Lock()

    def look(self, read: Callable[[RunState], _T]) -> _T:
        """What `read` finds in the state as it is now, which changes later. Raises NoJournalError, BadLineError."""
        with self._lock, contextlib.closing(SqliteJournal(self._path, read_only=True)) as journal:
            state, self._state = self._state, None
            if state is None or journal.hash_at(state.head.index) != state.head.hash:
                state = journal.state()
            for entry in journal.read(state.head.index + 1):
                state.apply(entry)
            self._state = state
            return read(state)
