"""Where entries become durable: a SQLite file in the run folder, or another engine that is a `Journal`."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from geocomm.core.file_systems import network_file_system
from geocomm.journal.entries import BadLineError, Entry, entry_of, hash_of, line_of
from geocomm.journal.run_state import EMPTY, Head, RunState

FILE_NAME = "journal.sqlite"
"""In the run folder."""

_APPLICATION_ID = 0x47434A4C  # "GCJL"
_FORMAT = 1
_READ_AT_ONCE = 500
_CHECKED_AT_OPEN = 200


class HeadMovedError(RuntimeError):
    """Somebody else has appended: the head is not the expected one."""


class NoJournalError(ValueError):
    """The file is not a journal that this version can use; the message says why, and what to do."""


class Journal(Protocol):
    """A chain of entries, of which none is ever changed. One leader at a time appends to it."""

    @property
    def head(self) -> Head:
        """The end of the chain, as this process knows it: `read` looks again."""
        ...

    def append(self, entry: Entry, expected_head: Head) -> None:
        """Write an entry; it is durable on return. Raises HeadMovedError where the head is not `expected_head`, or
        another one leads. BadLineError: it does not follow `expected_head`."""
        ...

    def read(self, first: int = 0) -> Iterator[Entry]:
        """The entries from index `first` on, up to the head at that time. Raises BadLineError for what is none."""
        ...

    def hash_at(self, index: int) -> str | None:
        """The hash of an entry; FIRST_PREV for -1, and None where there is no such entry."""
        ...

    def close(self) -> None:
        """Give back what is held. May be called again."""
        ...


class SharedJournal(Journal, Protocol):
    """A journal of all agents: each follows it into one of its own, which has all entries."""

    def forget(self, before: int) -> None:
        """Delete the entries before this index."""
        ...


class SqliteJournal:
    """The chain of entries of a run folder, of which none is ever changed, and `cut` alone takes some away.

    A SQLite file (WAL, synchronous=FULL) that one process writes and others may read.

    Raises NoJournalError: the file is of something else, of another version, or on a network file system. Raises
    BadLineError: its chain is broken at the end; `verify` looks at all of it.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        if kind := network_file_system(path.absolute().parent):
            raise NoJournalError(f"{path} is on {kind}, which does not keep SQLite's promises: choose a local disk")
        mode = "ro" if read_only else "rwc"
        try:
            self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None)
        except sqlite3.Error as error:
            raise NoJournalError(f"{path}: {error}") from None
        self.path = path
        try:
            self._open(read_only)
            self._head = self._read_head()
            self._check_end()
        except sqlite3.DatabaseError as error:
            self.close()
            raise NoJournalError(f"{path} is not a journal of geocomm: {error}") from None
        except BaseException:
            self.close()
            raise

    @property
    def head(self) -> Head:
        """The end of the chain, as this process knows it: `read` looks at the file."""
        return self._head

    def append(self, entry: Entry, expected_head: Head) -> None:
        """Write an entry; it is durable on return. Raises HeadMovedError where the head is not `expected_head`."""
        if entry.index != expected_head.index + 1 or entry.prev != expected_head.hash:
            raise BadLineError(f"entry {entry.index} does not follow entry {expected_head.index}")
        self._db.execute("BEGIN IMMEDIATE")
        try:
            found = self._read_head()
            if found != expected_head:
                self._head = found
                raise HeadMovedError(
                    f"{self.path}: the head is entry {found.index} ({found.hash[:12]}), and was expected to be entry "
                    f"{expected_head.index} ({expected_head.hash[:12]}): another process writes here"
                )
            row = (entry.index, hash_of(entry), line_of(entry))
            self._db.execute("INSERT INTO entries VALUES (?, ?, ?)", row)
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._head = Head(row[0], row[1])

    def cut(self, first: int) -> Path:
        """Take the entries from index `first` on out of the chain: another leader's follow there. Returns the file, one
        line an entry, in which they are kept for a person to look at."""
        aside = self.path.with_name(f"{self.path.stem}-{first}-{self._head.hash[:12]}.jsonl")
        with aside.open("w") as file:
            file.writelines(f"{line_of(entry)}\n" for entry in self.read(first))
            file.flush()
            os.fsync(file.fileno())
        self._db.execute("DELETE FROM entries WHERE idx >= ?", (first,))
        self._head = self._read_head()
        return aside

    def read(self, first: int = 0) -> Iterator[Entry]:
        """The entries from index `first` on, up to the head at that time. Raises BadLineError for what is none."""
        while rows := self._rows(first):
            for index, _, line in rows:
                yield _entry_at(index, line)
            first = rows[-1][0] + 1

    def hash_at(self, index: int) -> str | None:
        """The hash of an entry; FIRST_PREV for -1, and None where there is no such entry."""
        if index == EMPTY.index:
            return EMPTY.hash
        row = self._db.execute("SELECT hash FROM entries WHERE idx = ?", (index,)).fetchone()
        return None if row is None else str(row[0])

    def verify(self) -> RunState:
        """Read all of it: every line, every hash, every entry in its place. Raises BadLineError; returns the state."""
        state = RunState()
        first = 0
        while rows := self._rows(first):
            for index, said, line in rows:
                state.apply(_entry_at(index, line))
                if state.head != Head(index, said):
                    raise BadLineError(f"{self.path}: entry {index} has another hash than the file says")
            first = rows[-1][0] + 1
        return state

    def copy_to(self, path: Path, last: int) -> None:
        """Make a journal in another file of the entries up to index `last`."""
        copy = SqliteJournal(path)
        try:
            copy._db.execute("BEGIN IMMEDIATE")
            rows = self._db.execute("SELECT idx, hash, line FROM entries WHERE idx <= ?", (last,))
            copy._db.executemany("INSERT INTO entries VALUES (?, ?, ?)", rows)
            copy._db.execute("COMMIT")
        finally:
            copy.close()

    def close(self) -> None:
        """Give the file back. May be called again."""
        self._db.close()

    def _open(self, read_only: bool) -> None:
        found = int(self._pragma("application_id"))
        tables = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if read_only or tables or found:
            if found != _APPLICATION_ID:
                raise NoJournalError(f"{self.path} is not a journal of geocomm: it is another SQLite file")
            version = int(self._pragma("user_version"))
            if version != _FORMAT:
                raise NoJournalError(
                    f"{self.path} has format {version}, and this geocomm knows {_FORMAT}: take the version of "
                    "geocomm that wrote it"
                )
        if read_only:
            return
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("PRAGMA busy_timeout=5000")
        if not tables:
            self._db.executescript(
                "BEGIN IMMEDIATE;"
                "CREATE TABLE entries (idx INTEGER PRIMARY KEY, hash TEXT NOT NULL, line TEXT NOT NULL) STRICT;"
                f"PRAGMA application_id={_APPLICATION_ID};"
                f"PRAGMA user_version={_FORMAT};"
                "COMMIT;"
            )

    def _pragma(self, name: str) -> str:
        return str(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def _rows(self, first: int) -> list[tuple[int, str, str]]:
        query = "SELECT idx, hash, line FROM entries WHERE idx >= ? ORDER BY idx LIMIT ?"
        return self._db.execute(query, (first, _READ_AT_ONCE)).fetchall()

    def _read_head(self) -> Head:
        row = self._db.execute("SELECT idx, hash FROM entries ORDER BY idx DESC LIMIT 1").fetchone()
        return EMPTY if row is None else Head(int(row[0]), str(row[1]))

    def _check_end(self) -> None:
        """The last entries, so that opening a long journal stays cheap."""
        first = max(self._head.index + 1 - _CHECKED_AT_OPEN, 0)
        prev = self.hash_at(first - 1)
        for entry in self.read(first):
            if entry.index > self._head.index:  # another process has appended meanwhile
                break
            if entry.prev != prev:
                raise BadLineError(f"{self.path}: the chain is broken before entry {entry.index}")
            prev = hash_of(entry)
        if prev != self._head.hash:
            raise BadLineError(f"{self.path}: its last entry has another hash than the file says")


def _entry_at(index: int, line: str) -> Entry:
    entry = entry_of(line)
    if entry.index != index:
        raise BadLineError(f"entry {entry.index} lies in the place of entry {index}")
    return entry
