"""The journal of a run folder, in a real SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from geocomm.core.records import line_of
from geocomm.elastic.journal.entries import EMPTY, BadLineError, Entry, Head, Join, Snapshot
from geocomm.elastic.journal.journal import HeadMovedError, NoJournalError, SqliteJournal
from geocomm.elastic.journal.message_lines import parts_of
from geocomm.elastic.journal.run_state import RunState
from support.made_entries import made_entries


@pytest.fixture(scope="module")
def entries() -> tuple[Entry, ...]:
    return made_entries()


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
    assert journal.head == Head(len(entries) - 1, entries[-1].hash)
    assert journal.hash_at(4) == entries[5].prev
    assert journal.hash_at(-1) == EMPTY.hash
    verified, confirmed = journal.verify()
    assert (verified.head, confirmed) == (journal.head, True)


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
    assert journal.head == Head(4, entries[4].hash)
    other = Join(index=5, prev=entries[4].hash, term=7, site="z", store="0" * 32)
    journal.append(other, journal.head)
    journal.close()
    assert [*SqliteJournal(tmp_path / "j").read()] == [*entries[:5], other]


def test_entry_that_does_not_follow_is_refused(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    journal = filled(tmp_path / "j", entries[:3])
    with pytest.raises(BadLineError):
        journal.append(entries[5], journal.head)
    assert journal.head.index == 2


def states_in(path: Path) -> list[int]:
    with sqlite3.connect(path) as db:
        return [row[0] for row in db.execute("SELECT idx FROM states ORDER BY idx")]


def test_state_of_the_file_is_that_of_all_entries_and_few_are_kept(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    entries = entries[: next(entry.index for entry in entries if isinstance(entry, Snapshot))]  # else one for each
    journal, state = filled(tmp_path / "j", entries[:2]), RunState.of(entries[:2])
    for entry in entries[2:]:
        journal.append(entry, journal.head)
        state.apply(entry)
        journal.keep(state, always=True)
        assert journal.state().text == state.text == RunState.of(journal.read()).text
    last = len(entries) - 1
    assert states_in(tmp_path / "j") == [last - 1, last]
    journal.keep(state)
    for broken, found in ((last, last), (last - 1, last)):  # the one before, then all entries
        with sqlite3.connect(tmp_path / "j") as db:
            db.execute("UPDATE states SET state = replace(state, '\"term\":', '\"term\": ') WHERE idx = ?", (broken,))
        assert SqliteJournal(tmp_path / "j").state().head.index == found


def test_state_of_entries_that_are_not_stored_yet_is_not_kept(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    journal = SqliteJournal(tmp_path / "j")
    journal.keep(RunState.of(entries[:9]), always=True)
    assert (journal.head, states_in(tmp_path / "j")) == (EMPTY, [])
    journal.append_all(entries[:9], EMPTY)


@pytest.mark.parametrize("kept", [False, True])
def test_state_stands_in_the_place_of_entries_that_are_not_needed(
    tmp_path: Path, entries: tuple[Entry, ...], *, kept: bool
) -> None:
    state, journal = RunState(), SqliteJournal(tmp_path / "j")
    for entry in entries:
        if kept and isinstance(entry, Snapshot):
            journal.keep(state, always=True)
        journal.append(entry, journal.head)
        state.apply(entry)
    before = state.needed_from
    assert isinstance(entries[before], Snapshot)
    rounds = {fragment: list(journal.rounds(fragment, 0)) for fragment in (0, 1)}
    journal.forget(before)
    for again in (journal, SqliteJournal(tmp_path / "j", read_only=True)):
        assert again.base == Head(before - 1, entries[before].prev)
        assert tuple(again.read()) == entries[before:]
        assert again.state().text == state.text
        assert [again.hash_at(index) for index in (before - 2, before - 1)] == [None, again.base.hash]
        for fragment, known in rounds.items():
            here = [entry for entry in known if entry.index >= before]
            assert again.first_round(fragment) == here[0].version
            assert list(again.rounds(fragment, here[0].version)) == here
            assert list(again.rounds(fragment, here[0].version - 1)) == []
        verified, confirmed = again.verify()
        assert (verified.text, confirmed) == (state.text, True)
    copy = tmp_path / "copy"
    journal.copy_to(copy, before + 3)
    assert SqliteJournal(copy).state().head.index == before + 3
    with sqlite3.connect(tmp_path / "j") as db:
        db.execute("UPDATE states SET state = replace(state, '\"every\":6', '\"every\":7')")
        db.execute("UPDATE states SET digest = '0'")
    with pytest.raises(BadLineError, match=f"state after entry {before - 1} is damaged"):
        SqliteJournal(tmp_path / "j").verify()


def test_a_cut_that_was_broken_off_is_a_cut(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    journal, state = filled(tmp_path / "j", entries), RunState.of(entries)
    before = state.needed_from
    journal.keep(RunState.of(entries[:before]), always=True)
    with sqlite3.connect(tmp_path / "j") as db:
        db.execute("DELETE FROM entries WHERE idx < 3")
    again = SqliteJournal(tmp_path / "j")
    assert next(again.read()).index == before
    assert again.state().text == state.text
    again.forget(before)
    again.cut(before + 2)
    assert (again.head.index, again.base.index) == (before + 1, before - 1)
    again.cut(before - 5)  # which the state has already
    assert (again.head, states_in(tmp_path / "j")) == (EMPTY, [])


def test_a_site_is_sent_a_state_in_place_of_entries_that_are_many_or_gone(
    tmp_path: Path, entries: tuple[Entry, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = SqliteJournal(tmp_path / "j")
    state = RunState()
    for entry in entries:
        if isinstance(entry, Snapshot):
            journal.keep(state, always=True)
        journal.append(entry, journal.head)
        state.apply(entry)
    assert journal.state_for(0) is None
    monkeypatch.setattr("geocomm.elastic.journal.journal.MOST_SENT", 25)
    sent = journal.state_for(0)
    assert sent is not None
    assert 10 < journal.head.index - sent.head.index <= 25
    assert journal.state_for(1) is None  # it may have states from which it goes on by them
    journal.forget(state.needed_from)
    assert journal.state_for(journal.base.index) is not None
    other = SqliteJournal(tmp_path / "other")
    other.append_all(entries[:3], EMPTY)
    parts = list(parts_of(sent))
    assert parts[-1].last
    other.begin_at(RunState.read("".join(part.text for part in parts)))
    other.append_all(entries[sent.head.index + 1 :], other.head)
    assert (other.state().text, other.base) == (state.text, sent.head)
    assert SqliteJournal(tmp_path / "other").verify()[1]


def test_a_wrong_state_is_found_by_the_next_snapshot(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    index = max(entry.index for entry in entries if isinstance(entry, Snapshot))
    wrong = RunState.of(entries[: index - 3])
    wrong.sites["a"] = replace(wrong.sites["a"], weight=wrong.sites["a"].weight + 1)
    journal = SqliteJournal(tmp_path / "j")
    journal.begin_at(RunState.read(wrong.text))
    journal.append_all(entries[index - 3 : index + 1], journal.head)
    for look in (journal.state, journal.verify):
        with pytest.raises(BadLineError, match="another state"):
            look()


@pytest.mark.parametrize("index", [1, 900])
def test_changed_line_is_found_at_the_latest_by_verify(tmp_path: Path, entries: tuple[Entry, ...], index: int) -> None:
    head = Head(len(entries) - 1, entries[-1].hash)
    more: list[Entry] = [*entries]
    while len(more) < 1000:
        more.append(Join(index=head.index + 1, prev=head.hash, term=0, site=f"s{len(more)}", store="0" * 32))
        head = Head(head.index + 1, more[-1].hash)
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


@pytest.mark.parametrize("read", ["state", "forget"])
def test_states_go_while_another_process_reads_them(tmp_path: Path, entries: tuple[Entry, ...], read: str) -> None:
    """As `geocomm members ls` does, and what lets go of entries, beside the agent that writes."""
    writer, state, half = SqliteJournal(tmp_path / "j"), RunState(), len(entries) // 2

    def write(some: Sequence[Entry]) -> None:
        for entry in some:
            writer.append(entry, writer.head)
            state.apply(entry)
            if entry.index % 3 == 0:
                writer.keep(state, always=True)

    write(entries[:half])
    reader, rest = SqliteJournal(tmp_path / "j"), list(entries[half:])

    def meanwhile(statement: str) -> None:
        if statement.startswith("SELECT hash, digest, state FROM states"):
            write(rest)
            rest.clear()

    reader._db.set_trace_callback(meanwhile)  # pyright: ignore[reportPrivateUsage]
    if read == "state":
        assert reader.state().head.index == half - 1
    else:
        kept = {index for index, _ in reader._states()}  # pyright: ignore[reportPrivateUsage]
        last = max(kept) - 1
        reader.forget(last + 1)
        assert reader.base.index == last
    assert not rest
    assert reader.state().head == writer.head
    assert writer.verify()[0].head == writer.head


def test_journal_is_opened_while_another_process_puts_a_state_in_its_place(
    tmp_path: Path, entries: tuple[Entry, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what lets go of entries does, while the agent takes the state that the leader sends."""
    writer = SqliteJournal(tmp_path / "j")
    writer.append_all(entries, EMPTY)
    state, begun = writer.state(), list[int]()
    hash_at = SqliteJournal.hash_at

    def meanwhile(journal: SqliteJournal, index: int) -> str | None:
        if journal is not writer and not begun:
            begun.append(index)
            writer.begin_at(state)
        return hash_at(journal, index)

    monkeypatch.setattr(SqliteJournal, "hash_at", meanwhile)
    opened = SqliteJournal(tmp_path / "j")
    assert begun
    assert opened.state().head == writer.head == state.head


def test_a_term_that_is_not_higher_is_refused_before_it_is_written(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    journal = filled(tmp_path / "j", entries)
    for term in (0, journal.state().term):
        with pytest.raises(BadLineError, match="is not higher than that of entry"):
            journal.term_begun(term, "a", "127.0.0.1:1")
    begun = journal.term_begun(journal.state().term + 1, "a", "127.0.0.1:1")
    journal.append(begun, journal.head)
    assert journal.state().taken_over == begun
