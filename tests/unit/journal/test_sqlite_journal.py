"""The journal of a run folder, in a real SQLite file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from geocomm.journal.entries import BadLineError, Entry, Join, hash_of, line_of
from geocomm.journal.journal import HeadMovedError, NoJournalError, SqliteJournal
from geocomm.journal.run_state import EMPTY, Head
from geocomm.journal.simulated_run import SimulatedRun


@pytest.fixture(scope="module")
def entries() -> tuple[Entry, ...]:
    history = SimulatedRun(3).run()
    assert len(history.entries) > 20
    return history.entries


def filled(path: Path, entries: tuple[Entry, ...]) -> SqliteJournal:
    journal = SqliteJournal(path)
    for entry in entries:
        journal.append(entry, journal.head)
    return journal


def test_journal_reads_what_was_appended_after_it_was_opened_again(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    filled(tmp_path / "j", entries).close()
    journal = SqliteJournal(tmp_path / "j")
    assert tuple(journal.read()) == entries
    assert list(journal.read(7)) == list(entries[7:])
    assert journal.head == Head(len(entries) - 1, hash_of(entries[-1]))
    assert journal.hash_at(4) == entries[5].prev
    assert journal.hash_at(-1) == EMPTY.hash
    assert journal.verify().head == journal.head


def test_append_is_refused_where_another_has_appended(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    one, other = filled(tmp_path / "j", entries[:3]), SqliteJournal(tmp_path / "j")
    seen = other.head
    one.append(entries[3], one.head)
    with pytest.raises(HeadMovedError):
        other.append(entries[3], seen)
    other.append(entries[4], other.head)
    assert [entry.index for entry in one.read()] == [0, 1, 2, 3, 4]


def test_what_is_cut_off_lies_beside_and_others_follow_in_its_place(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    journal = filled(tmp_path / "j", entries[:9])
    aside = journal.cut(5)
    assert aside.read_text().splitlines() == [line_of(entry) for entry in entries[5:9]]
    assert journal.head == Head(4, hash_of(entries[4]))
    other = Join(index=5, prev=hash_of(entries[4]), term=7, site="z", store="0" * 32)
    journal.append(other, journal.head)
    journal.close()
    assert [*SqliteJournal(tmp_path / "j").read()] == [*entries[:5], other]


def test_entry_that_does_not_follow_is_refused(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    journal = filled(tmp_path / "j", entries[:3])
    with pytest.raises(BadLineError):
        journal.append(entries[5], journal.head)
    assert journal.head.index == 2


@pytest.mark.parametrize("index", [1, 900])
def test_changed_line_is_found_at_the_latest_by_verify(tmp_path: Path, entries: tuple[Entry, ...], index: int) -> None:
    head = Head(len(entries) - 1, hash_of(entries[-1]))
    more: list[Entry] = [*entries]
    while len(more) < 1000:
        more.append(Join(index=head.index + 1, prev=head.hash, term=0, site=f"s{len(more)}", store="0" * 32))
        head = Head(head.index + 1, hash_of(more[-1]))
    filled(tmp_path / "j", tuple(more)).close()
    with sqlite3.connect(tmp_path / "j") as db:
        db.execute("UPDATE entries SET line = replace(line, '\"term\":0', '\"term\":1') WHERE idx = ?", (index,))
    if index == 900:
        with pytest.raises(BadLineError):
            SqliteJournal(tmp_path / "j")
    else:  # far from the end: opening does not read it
        with pytest.raises(BadLineError):
            SqliteJournal(tmp_path / "j").verify()


def test_files_of_other_formats_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, but long enough to have a header that is none\n" * 9)
    with sqlite3.connect(tmp_path / "other") as db:
        db.execute("CREATE TABLE entries (x)")
    SqliteJournal(tmp_path / "newer").close()
    with sqlite3.connect(tmp_path / "newer") as db:
        db.execute("PRAGMA user_version = 99")
    for name in ("text", "other", "newer"):
        with pytest.raises(NoJournalError):
            SqliteJournal(tmp_path / name)
    with pytest.raises(NoJournalError):
        SqliteJournal(tmp_path / "away", read_only=True)
