"""A journal whose file has a flipped byte, in a real SQLite file."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path

import pytest

from geocomm.elastic.journal.entries import BadLineError, Entry, Snapshot
from geocomm.elastic.journal.journal import NoJournalError, SqliteJournal
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.site.journal_of_others import _damage
from support.made_entries import made_entries
from support.whole_run.damage import damage


@pytest.fixture(scope="module")
def entries() -> tuple[Entry, ...]:
    return made_entries()


def write(path: Path, entries: tuple[Entry, ...], *, cut: bool) -> None:
    with contextlib.closing(SqliteJournal(path)) as journal:
        journal.append_all(entries, journal.head)
        if cut:
            journal.forget(next(entry.index for entry in entries if isinstance(entry, Snapshot)))


def check(path: Path) -> None:
    with contextlib.closing(SqliteJournal(path, read_only=True)) as journal:
        journal.check()


@pytest.mark.parametrize("flips", [60, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cut", [False, True])
def test_flipped_byte_anywhere_is_found_or_changes_nothing(
    tmp_path: Path, entries: tuple[Entry, ...], flips: int, *, cut: bool
) -> None:
    path, chance = tmp_path / "j.sqlite", random.Random(flips)
    write(path, entries, cut=cut)
    check(path)
    whole, text = path.read_bytes(), RunState.of(entries).text
    found = 0
    for _ in range(flips):
        content = bytearray(whole)
        content[chance.randrange(100, len(content))] ^= 0x04  # before that SQLite says that it is none of its files
        path.write_bytes(content)
        try:
            check(path)
        except (BadLineError, NoJournalError, sqlite3.DatabaseError):
            found += 1
            continue
        with contextlib.closing(SqliteJournal(path)) as journal:
            assert journal.state().text == text
            assert [*journal.read()] == [*entries[journal.base.index + 1 :]]
    assert found > flips // 3


@pytest.mark.parametrize("index", [0, 9, -1])
def test_missing_entry_is_damage(tmp_path: Path, entries: tuple[Entry, ...], index: int) -> None:
    write(tmp_path / "j", entries, cut=False)
    with sqlite3.connect(tmp_path / "j") as db:
        db.execute("DELETE FROM entries WHERE idx = ?", (index % len(entries),))
    if index < 0:  # a shorter journal is a journal
        check(tmp_path / "j")
    else:
        with pytest.raises(BadLineError, match="is damaged"):
            check(tmp_path / "j")


@pytest.mark.parametrize("flips", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_what_a_disk_does_to_a_journal_is_told_or_changes_nothing(
    tmp_path: Path, entries: tuple[Entry, ...], flips: int
) -> None:
    path, chance = tmp_path / "j.sqlite", random.Random(flips)
    write(path, entries, cut=True)
    whole, text = path.read_bytes(), RunState.of(entries).text
    told = 0
    for _ in range(flips):
        path.write_bytes(whole)
        damage(path, chance)
        if _damage(path, has_run=True):
            told += 1
            continue
        with contextlib.closing(SqliteJournal(path)) as journal:
            assert journal.state().text == text
    assert told > flips // 2


@pytest.mark.parametrize("at", range(16, 24))
def test_a_journal_whose_first_page_has_changed_is_told_or_can_be_written(
    tmp_path: Path, entries: tuple[Entry, ...], at: int
) -> None:
    path = tmp_path / "j.sqlite"
    write(path, entries[:50], cut=False)
    whole = path.read_bytes()
    for bit in range(8):
        for end in ("-wal", "-shm"):
            path.with_name(f"{path.name}{end}").unlink(missing_ok=True)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        if not _damage(path, has_run=True):
            with contextlib.closing(SqliteJournal(path)) as journal:
                journal.append_all(entries[50:60], journal.head)
            check(path)


def test_a_row_whose_text_is_of_another_type_is_damage(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    write(tmp_path / "j", entries, cut=False)
    with sqlite3.connect(tmp_path / "j") as db:
        db.execute("PRAGMA writable_schema=ON")
        db.execute("UPDATE sqlite_schema SET sql = replace(replace(sql, 'line TEXT NOT NULL', 'line'), 'STRICT', '')")
    with sqlite3.connect(tmp_path / "j") as db:
        db.execute("UPDATE entries SET line = NULL WHERE idx = 3")
    with pytest.raises(BadLineError, match="entry 3 is damaged"):
        check(tmp_path / "j")


@pytest.mark.parametrize("content", [None, b"", b"not of SQLite" * 1000])
def test_a_journal_that_is_gone_or_something_else_is_damage_where_the_site_has_a_run(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "j"
    if content is not None:
        path.write_bytes(content)
    assert _damage(path, has_run=True)
    assert not _damage(path, has_run=False)
    assert path.exists() == (content is not None)
