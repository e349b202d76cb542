"""Where entries become durable: SQLite in the run folder. `elastic.leading.etcd` has the engine that sites share."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from geocomm.core.bad_input import BadInput
from geocomm.core.file_systems import network_file_system
from geocomm.core.records import Hash
from geocomm.elastic.journal.entries import EMPTY, AnyRound, BadLineError, Entry, Head, TermBegun, entry_of
from geocomm.elastic.journal.run_state import RunState

_APPLICATION_ID = 0x47434A4C  # "GCJL"
_FORMAT = 5
_READ_AT_ONCE = 500
_CUT_AT_ONCE = 500
_CHECKED_AT_OPEN = 200
_WRITE_FORMAT = 18
"""The byte of SQLite's first page by which it knows whether it may write the file."""
STATE_EVERY = 1000
"""Entries from one state in the file to the next: who opens it reads no more."""
MOST_SENT = 10_000
"""Entries that are sent to a site that has none; where there are more, it gets a state, and those since then."""
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE entries
(idx INTEGER PRIMARY KEY, hash TEXT NOT NULL, line TEXT NOT NULL, fragment INTEGER, version INTEGER) STRICT;
CREATE INDEX rounds ON entries (fragment, version) WHERE fragment IS NOT NULL;
CREATE TABLE states (idx INTEGER PRIMARY KEY, hash TEXT NOT NULL, digest TEXT NOT NULL, state TEXT NOT NULL) STRICT;
PRAGMA application_id={_APPLICATION_ID};
PRAGMA user_version={_FORMAT};
COMMIT;
"""


_T = TypeVar("_T")


class HeadMovedError(RuntimeError):
    """Somebody else has appended: the head is not the expected one."""


class NoJournalError(BadInput, ValueError):
    """The file is not a journal that this version can use; the message says why, and what to do."""


class DamagedJournalError(NoJournalError):
    """Not even the file's first page is that of a journal."""


class SqliteJournal:
    """The chain of entries of a run folder, of which none is ever changed. What the oldest ones say may stand in their
    place as a state; `cut` alone takes newest ones away.

    A SQLite file (WAL, synchronous=FULL) that one process writes and others may read. It has states of the run now and
    then, so that nobody reads all entries.

    Raises NoJournalError: the file is of something else (DamagedJournalError), of another version, or on a network file
    system.
    sqlite3.OperationalError: the disk is full, or fails. BadLineError: its chain is broken at the end; `verify` looks
    at all of it.
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
            with self._one_view():
                self._head = self._read_head()
                self._state_at = max((index for index, _ in self._states()), default=EMPTY.index)
                if not read_only:
                    self._check_end()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # in SQLite's own words there may be damage, too
            self.close()
            if not is_of_disk(error):
                raise DamagedJournalError(f"{path} is not a journal of geocomm: {error}") from None
            if read_only:
                raise NoJournalError(f"{path} cannot be read: {error}") from None
            raise
        except BaseException:
            self.close()
            raise

    @property
    def head(self) -> Head:
        """The end of the chain, as this process knows it: `read` looks at the file."""
        return self._head

    @property
    def base(self) -> Head:
        """What the first entry that is here follows: EMPTY, unless there is a state in the place of older ones."""
        # Entries go from the oldest on, once a state is there for them: what is between is on its way out.
        if self._db.execute("SELECT 1 FROM entries WHERE idx = 0").fetchone():
            return EMPTY
        return next((Head(index, said) for index, said in self._states()), EMPTY)

    def append(self, entry: Entry, expected_head: Head) -> None:
        """Write an entry; it is durable on return. Raises HeadMovedError where the head is not `expected_head`."""
        self.append_all([entry], expected_head)

    def append_all(self, entries: Sequence[Entry], expected_head: Head) -> None:
        """Write entries, all of them or none; they are durable on return."""
        head, rows = expected_head, list[tuple[int, str, str, int | None, int | None]]()
        for entry in entries:
            head = head.then(entry)
            fragment, version = (entry.fragment, entry.version) if isinstance(entry, AnyRound) else (None, None)
            rows.append((head.index, head.hash, entry.line, fragment, version))
        with self._transaction():
            found = self._read_head()
            if found != expected_head:
                self._head = found
                raise HeadMovedError(
                    f"{self.path}: the head is entry {found.index} ({found.hash[:12]}), and was expected to be entry "
                    f"{expected_head.index} ({expected_head.hash[:12]}): another process writes here"
                )
            self._db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", rows)
        self._head = head

    def term_begun(self, term: int, site: str, address: str) -> TermBegun:
        """The entry by which a site begins to lead at the end of this journal, which does not have it yet.

        Raises BadLineError where the journal could not be read with it, as for a term that is not higher.
        """
        head, state = self.head, self.state()
        if term <= state.term:
            raise BadLineError(f"term {term} is not higher than that of entry {head.index}, which is {state.term}")
        entry = TermBegun(index=head.index + 1, prev=head.hash, term=term, site=site, address=address)
        state.apply(entry)
        return entry

    def cut(self, first: int) -> Path:
        """Take the entries from index `first` on out of the chain: another leader's follow there. Returns the file, one
        line an entry, in which they are kept for a person to look at."""
        aside = self.path.with_name(f"{self.path.stem}-{first}-{self._head.hash[:12]}.jsonl")
        with aside.open("w") as file:
            file.writelines(f"{entry.line}\n" for entry in self.read(first))
            file.flush()
            os.fsync(file.fileno())
        with self._transaction():
            before = self.base
            self._db.execute("DELETE FROM entries WHERE idx >= ? OR ? <= ?", (first, first, before.index))
            self._db.execute("DELETE FROM states WHERE idx >= ?", (first,))
        self._head = self._read_head()
        return aside

    def read(self, first: int = 0) -> Iterator[Entry]:
        """The entries from index `first` on, or from the first that is here, up to the head at that time. Raises
        BadLineError for what is none."""
        for index, _, line in self._rows(first):
            yield _entry_at(index, line)

    def lines(self, first: int, last: int) -> Iterator[str]:
        """The lines of these entries, the last one included. Raises BadLineError for a damaged one."""
        for index, said, line in self._rows(first):
            if index > last:
                return
            if _hash(line) != said:
                raise BadLineError(f"{self.path}: entry {index} is damaged")
            yield line

    def rounds(self, fragment: int, version: int) -> Iterator[AnyRound]:
        """The round entries of a fragment from this version on."""
        query = "SELECT idx, line FROM entries WHERE fragment = ? AND version = ? AND idx > ?"
        base = self.base.index
        while row := self._db.execute(query, (fragment, version, base)).fetchone():
            entry = _entry_at(int(row[0]), str(row[1]))
            if isinstance(entry, AnyRound):
                yield entry
            version += 1

    def first_round(self, fragment: int) -> int | None:
        """The lowest version of a fragment of which there is a round entry here; None: there is none at all."""
        query = "SELECT version FROM entries WHERE fragment = ? AND idx > ? ORDER BY version LIMIT 1"
        row = self._db.execute(query, (fragment, self.base.index)).fetchone()
        return None if row is None else int(row[0])

    def hash_at(self, index: int) -> str | None:
        """The hash of an entry; FIRST_PREV for -1, and None where there is no such entry, or not any more."""
        if index == EMPTY.index:
            return EMPTY.hash
        base = self.base
        if index <= base.index:
            return base.hash if index == base.index else None
        row = self._db.execute("SELECT hash FROM entries WHERE idx = ?", (index,)).fetchone()
        return None if row is None else str(row[0])

    # ---- states

    def state(self) -> RunState:
        """What the journal says now. Raises BadLineError where that cannot be known."""
        return self._state_after(None)

    def keep(self, state: RunState, *, always: bool = False) -> None:
        """Write what the entries up to some index say, STATE_EVERY entries after the last time; or now. These entries
        are in the file: else nothing happens."""
        due = always or state.head.index >= self._state_at + STATE_EVERY
        if due and self.hash_at(state.head.index) == state.head.hash:
            self._put_state(state)
            snapshots = [index - 1 for index in state.kept] + ([state.snapshot.index - 1] if state.snapshot else [])
            needed = {self.base.index, *snapshots, *[index for index, _ in self._states()][-2:]}
            marks = ", ".join("?" * len(needed))
            self._db.execute(f"DELETE FROM states WHERE idx NOT IN ({marks})", tuple(needed))

    def state_for(self, first: int) -> RunState | None:
        """What a site is sent that lacks the entries from `first` on, before those since then; None: all of them.

        One that has a journal gets as many as there are: it may go on from states of its own disk by them."""
        state: RunState | None = None
        with self._one_view():
            if first > self.base.index and (first > 0 or self._head.index < MOST_SENT):
                return None
            for index, _ in reversed(self._states()):
                if state is not None and self._head.index - index > MOST_SENT:
                    break
                with contextlib.suppress(BadLineError):
                    state = self._newest_state(index)
        return state if state is not None and state.head.index >= first else None

    def begin_at(self, state: RunState) -> None:
        """Have this state in the place of all entries: what a leader says to a site that lacks too many."""
        with self._transaction():
            self._db.execute("DELETE FROM entries")
            self._db.execute("DELETE FROM states")
            self._put_state(state)
        self._head = self._read_head()

    def forget(self, before: int) -> None:
        """Put a state in the place of the entries before this one. Others may write meanwhile."""
        last = before - 1
        if last <= self.base.index:
            return
        if last not in [index for index, _ in self._states()]:
            state = self._state_after(last)
            with self._transaction():
                if last <= self.base.index or self.hash_at(last) != state.head.hash:
                    return  # another state has taken the place of all entries meanwhile
                self._put_state(state)
        self._db.execute("PRAGMA synchronous=NORMAL")  # what is not deleted yet after a crash is the next time
        self._db.execute("DELETE FROM states WHERE idx < ?", (last,))
        while self._db.execute(
            "DELETE FROM entries WHERE idx IN (SELECT idx FROM entries WHERE idx <= ? ORDER BY idx LIMIT ?)",
            (last, _CUT_AT_ONCE),
        ).rowcount:
            time.sleep(0.001)
        self._db.execute("PRAGMA synchronous=FULL")

    def verify(self) -> tuple[RunState, bool]:
        """Read all of it: every line, every hash, every entry in its place. Raises BadLineError; returns the state, and
        whether the chain itself confirms all of it: from the first entry on, or by a snapshot."""
        with self._one_view():
            base, states = self.base, dict(self._states())
            state = RunState() if base == EMPTY else self._state_at_index(base.index)
            confirmed = base == EMPTY
            for index, said, line in self._rows(0):
                entry = _entry_at(index, line)
                state.apply(entry)
                confirmed = confirmed or entry.kind == "snapshot"  # which says the state before it
                if state.head != Head(index, said):
                    raise BadLineError(f"{self.path}: entry {index} has another hash than the file says")
                if index in states and self._state_at_index(index).text != state.text:
                    raise BadLineError(f"{self.path}: the state after entry {index} is not what its entries give")
            return state, confirmed

    def check(self) -> None:
        """Look at all bytes of all entries, without reading what they say, at the state now, and at what SQLite keeps
        beside them: else who writes would find the damage, again and again. BadLineError, sqlite3.DatabaseError: the
        file is damaged."""
        with self.path.open("rb") as file:
            head = file.read(_WRITE_FORMAT + 1)
        if head[_WRITE_FORMAT:] > b"\2":  # all of it can be read, and SQLite does not write it
            raise BadLineError(f"{self.path} is damaged: its first page is of a later SQLite")
        if (found := self._pragma("integrity_check(1)")) != "ok":
            raise BadLineError(f"{self.path} is damaged: {found}")
        with self._one_view():
            head = self.base
            for index, said, line in self._rows(0):
                if index != head.index + 1 or _hash(line) != said or f'"prev":"{head.hash}"' not in line:
                    raise BadLineError(f"{self.path}: entry {head.index + 1} is damaged, or missing")
                head = Head(index, said)
        if self.state().head != self._head:
            raise BadLineError(f"{self.path}: its end is damaged")

    def copy_to(self, path: Path, last: int) -> None:
        """Make a journal in another file of the entries up to index `last`."""
        copy = SqliteJournal(path)
        try:
            with copy._transaction():
                rows = self._db.execute("SELECT * FROM entries WHERE idx <= ? AND idx > ?", (last, self.base.index))
                copy._db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", rows)
                rows = self._db.execute("SELECT * FROM states WHERE idx <= ?", (last,))
                copy._db.executemany("INSERT INTO states VALUES (?, ?, ?, ?)", rows)
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
                raise DamagedJournalError(f"{self.path} is not a journal of geocomm: it is another SQLite file")
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
            self._db.executescript(_SCHEMA)

    @contextlib.contextmanager
    def _transaction(self) -> Generator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    @contextlib.contextmanager
    def _one_view(self) -> Generator[None]:
        """What is read within is the file as it was at one time: another process may cut it."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    def _pragma(self, name: str) -> str:
        return str(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def _rows(self, first: int) -> Iterator[tuple[int, str, str]]:
        query = "SELECT idx, hash, line FROM entries WHERE idx >= ? ORDER BY idx LIMIT ?"
        first = max(first, self.base.index + 1)
        while rows := self._db.execute(query, (first, _READ_AT_ONCE)).fetchall():
            for index, said, line in rows:
                if not (isinstance(said, str) and isinstance(line, str)):  # a disk has changed what tells the type
                    raise BadLineError(f"{self.path}: entry {index} is damaged")
                yield index, said, line
            first = rows[-1][0] + 1

    def _read_head(self) -> Head:
        row = self._db.execute("SELECT idx, hash FROM entries ORDER BY idx DESC LIMIT 1").fetchone()
        return self.base if row is None else Head(int(row[0]), str(row[1]))

    def _states(self) -> list[tuple[int, Hash]]:
        """(index, hash) of the entries after which there is a state, the oldest first."""
        return [
            (int(index), str(said)) for index, said in self._db.execute("SELECT idx, hash FROM states ORDER BY idx")
        ]

    def _put_state(self, state: RunState) -> None:
        text = state.text
        row = (state.head.index, state.head.hash, _hash(text), text)
        self._db.execute("INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?)", row)
        self._state_at = max(self._state_at, state.head.index)

    def _state_at_index(self, index: int) -> RunState:
        row = self._db.execute("SELECT hash, digest, state FROM states WHERE idx = ?", (index,)).fetchone()
        hash_, digest, text = map(str, row or ("", "", ""))  # of another type: damaged
        state = RunState.read(text) if _hash(text) == digest else None
        if state is None or state.head != Head(index, hash_) or self.hash_at(index) != hash_:
            raise BadLineError(f"{self.path}: the state after entry {index} is damaged")
        return state

    def _state_after(self, last: int | None) -> RunState:
        """What the entries up to index `last`, or all of them, say."""
        with self._one_view():
            state = self._newest_state(last)
            for entry in self.read(state.head.index + 1):
                if last is not None and entry.index > last:
                    break
                state.apply(entry)
            return state

    def _newest_state(self, last: int | None) -> RunState:
        """The newest undamaged one, which is not after entry `last`. Within `_one_view`."""
        base = self.base
        for index, _ in reversed(self._states()):
            if last is None or index <= last:
                try:
                    return self._state_at_index(index)
                except BadLineError:
                    if index == base.index:
                        raise
        return RunState()

    def _check_end(self) -> None:
        """The last entries, so that opening a long journal stays cheap. Within `_one_view`."""
        first = max(self._head.index + 1 - _CHECKED_AT_OPEN, self.base.index + 1)
        prev = self.hash_at(first - 1)
        for entry in self.read(first):
            if entry.prev != prev:
                raise BadLineError(f"{self.path}: the chain is broken before entry {entry.index}")
            prev = entry.hash
        if prev != self._head.hash:
            raise BadLineError(f"{self.path}: its last entry has another hash than the file says")


class RunReader:
    """The state of a run whose journal another process writes; reads each entry once. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: RunState | None = None
        self._lock = threading.Lock()

    def look(self, read: Callable[[RunState], _T]) -> _T:
        """What `read` finds in the state as it is now, which changes later. Raises NoJournalError, BadLineError."""
        with self._lock, contextlib.closing(SqliteJournal(self._path, read_only=True)) as journal:
            state, self._state = self._state, None
            try:
                if state is None or journal.hash_at(state.head.index) != state.head.hash:
                    state = journal.state()
                for entry in journal.read(state.head.index + 1):
                    state.apply(entry)
            except sqlite3.Error as error:
                raise NoJournalError(f"{self._path} cannot be read: {error}") from None
            self._state = state
            return read(state)


def is_of_disk(error: Exception) -> bool:
    """Whether a disk is full, or fails: the file is what it was."""
    return isinstance(error, sqlite3.OperationalError) and any(word in str(error) for word in ("full", "I/O", "open"))


def _hash(text: str) -> Hash:
    return hashlib.sha256(text.encode()).hexdigest()


def _entry_at(index: int, line: str) -> Entry:
    entry = entry_of(line)
    if entry.index != index:
        raise BadLineError(f"entry {entry.index} lies in the place of entry {index}")
    return entry
