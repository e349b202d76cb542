"""What is left of a journal whose file is damaged: by a flipped byte, or a disk that fails."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from geocomm.elastic.journal.entries import BadLineError, Entry, entry_of
from geocomm.elastic.journal.journal import NoJournalError, SqliteJournal
from geocomm.elastic.journal.run_state import Head, RunState

_LOOKED_AT = 2_000
"""Newest entries: an agent looks at them at each start. `verify` looks at all."""


@dataclass(frozen=True)
class Damage:
    """What is damaged in a journal's file."""

    first: int
    """The first entry that is damaged."""
    why: str


def damage_of(path: Path) -> Damage | None:
    """What is wrong with the newest entries of a journal, and with the state that they follow; None: nothing."""
    head: Head | None = None
    try:
        with contextlib.closing(SqliteJournal(path, read_only=True)) as journal:
            first = max(journal.base.index + 1, journal.head.index - _LOOKED_AT)
            head = Head(first - 1, journal.hash_at(first - 1) or "")
            last = journal.head.index
            for index, said, line in _rows(path, first):
                if index != head.index + 1 or hashlib.sha256(line.encode()).hexdigest() != said:
                    return Damage(head.index + 1, "its line, or its hash, is another one than was written")
                if f'"prev":"{head.hash}"' not in line:
                    return Damage(index, f"it does not follow entry {head.index}")
                head = Head(index, said)
            if head.index < last:
                return Damage(head.index + 1, "it is missing")
            try:
                journal.state()
            except BadLineError as error:
                return Damage(journal.base.index + 1, str(error))
    except sqlite3.DatabaseError as error:
        return Damage(0 if head is None else head.index + 1, str(error))
    except NoJournalError as error:
        if "malformed" not in str(error):
            raise
        return Damage(0, str(error))
    return None


def sound_after(path: Path, first: int) -> dict[int, Entry]:
    """The entries after a damaged one whose lines are as they were written."""
    found: dict[int, Entry] = {}
    with contextlib.suppress(sqlite3.DatabaseError):
        for index, said, line in _rows(path, first):
            with contextlib.suppress(BadLineError):
                entry = entry_of(line)
                if entry.index == index and entry.hash == said:
                    found[index] = entry
    return found


def write_anew(path: Path, damage: Damage, entries: list[Entry]) -> Path:
    """Put a journal in the place of a damaged one: what it has before the damage, then these entries. Returns where the
    damaged one is kept for a person to look at."""
    part, aside = path.with_name(f".{path.name}.part"), path.with_name(f"{path.stem}-damaged-{damage.first}.sqlite")
    _remove(part)
    state, before = _before(path, damage.first)
    with contextlib.closing(SqliteJournal(part)) as made:
        if state.genesis is not None:
            made.begin_at(state)
        made.append_all([*before, *entries], made.head)
        made.state()
    for end in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{end}", f"{aside}{end}")
    os.replace(part, path)
    _remove(part)
    return aside


def _before(path: Path, first: int) -> tuple[RunState, list[Entry]]:
    """The oldest sound state that is before a damaged entry, and the entries between; of all, where there is none."""
    with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(sqlite3.connect(_uri(path), uri=True)) as db:
        whole = db.execute("SELECT 1 FROM entries WHERE idx = 0").fetchone() and first > 0
        query = "SELECT digest, state FROM states WHERE idx < ? ORDER BY idx"
        rows = [] if whole else [(str(one), str(two)) for one, two in db.execute(query, (first,))]
        states = [RunState.read(text) for digest, text in rows if _hash(text) == digest]
        state = states[0] if states else RunState()
        begin = state.head.index + 1
        if begin > 0 or whole:
            in_place = itertools.takewhile(
                lambda one: one[1][0] == begin + one[0], enumerate(_rows(path, begin, first))
            )
            return state, [entry_of(line) for _, (_, _, line) in in_place]
    return RunState(), []


def _rows(path: Path, first: int, end: int = 1 << 62) -> Iterator[tuple[int, str, str]]:
    with contextlib.closing(sqlite3.connect(_uri(path), uri=True)) as db:
        query = "SELECT idx, hash, CAST(line AS BLOB) FROM entries WHERE idx >= ? AND idx < ? ORDER BY idx"
        for index, said, line in db.execute(query, (first, end)):
            yield int(index), str(said), bytes(line).decode(errors="replace")


def _uri(path: Path) -> str:
    return f"{path.absolute().as_uri()}?mode=ro"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _remove(path: Path) -> None:
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
