"""A journal whose file has a flipped byte, in a real SQLite file."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path

import pytest

from geocomm.core.records import line_of
from geocomm.elastic.journal.damaged_journal import Damage, damage_of, sound_after, write_anew
from geocomm.elastic.journal.entries import BadLineError, Entry, Snapshot
from geocomm.elastic.journal.journal import NoJournalError, SqliteJournal
from geocomm.elastic.journal.run_state import RunState
from support.journal.simulated_run import SimulatedRun


@pytest.fixture(scope="module")
def entries() -> tuple[Entry, ...]:
    return SimulatedRun(3).run().entries


def write(path: Path, entries: tuple[Entry, ...], *, cut: bool) -> None:
    with contextlib.closing(SqliteJournal(path)) as journal:
        journal.append_all(entries, journal.head)
        if cut:
            journal.forget(next(entry.index for entry in entries if isinstance(entry, Snapshot)))


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x04
    path.write_bytes(content)


@pytest.mark.parametrize("cut", [False, True])
def test_flipped_byte_of_a_line_names_the_entry_and_others_mend_it(
    tmp_path: Path, entries: tuple[Entry, ...], *, cut: bool
) -> None:
    path = tmp_path / "j.sqlite"
    write(path, entries, cut=cut)
    assert damage_of(path) is None
    state = RunState.of(entries)
    for index in (len(entries) - 1, len(entries) - 9):
        content = path.read_bytes()
        flip(path, content.index(line_of(entries[index]).encode()) + 30)
        damage = damage_of(path)
        assert damage is not None
        assert damage.first == index
        sound = sound_after(path, index)
        assert [*sound.values()] == [*entries[index + 1 :]]
        if sound:
            with pytest.raises(BadLineError):
                write_anew(path, damage, [*sound.values()])
            assert damage_of(path) == damage  # it was left as it is
        aside = write_anew(path, damage, [*entries[index:]])
        assert aside.exists()
        assert damage_of(path) is None
        with contextlib.closing(SqliteJournal(path)) as journal:
            assert journal.verify()[0].text == state.text
            assert (journal.base.index >= 0) == cut


@pytest.mark.parametrize("flips", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_flipped_byte_anywhere_is_found_or_changes_nothing(
    tmp_path: Path, entries: tuple[Entry, ...], flips: int
) -> None:
    path, chance = tmp_path / "j.sqlite", random.Random(flips)
    write(path, entries, cut=False)
    content, text = path.read_bytes(), RunState.of(entries).text
    found = 0
    for _ in range(flips):
        path.write_bytes(content)
        flip(path, chance.randrange(100, len(content)))  # before that SQLite says that it is none of its files
        try:
            damage = damage_of(path)
        except NoJournalError:  # of another version, as it seems
            continue
        if damage is None:
            with contextlib.closing(SqliteJournal(path)) as journal:
                assert journal.state().text == text
            continue
        found += 1
        write_anew(path, damage, [*entries[damage.first :]])
        with contextlib.closing(SqliteJournal(path)) as journal:
            assert journal.verify()[0].text == text
    assert found > flips // 3


def test_gap_is_damage(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    write(tmp_path / "j", entries, cut=False)
    with sqlite3.connect(tmp_path / "j") as db:
        db.execute("DELETE FROM entries WHERE idx = 9")
    damage = damage_of(tmp_path / "j")
    assert isinstance(damage, Damage)
    assert damage.first == 9
