"""`geocomm log` over a journal that a leader has written."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from geocomm.core.records import line_of
from geocomm.core.run_dir import RunDir
from geocomm.elastic.journal.entries import Away, End, Entry, Left, Round, Skip
from geocomm.elastic.journal.journal import SqliteJournal
from support.command_tree import APP
from support.made_entries import made_entries


@pytest.fixture(scope="module")
def entries() -> tuple[Entry, ...]:
    return made_entries(6)


@pytest.fixture
def run_dir(tmp_path: Path, entries: tuple[Entry, ...]) -> Path:
    journal = SqliteJournal(RunDir(tmp_path).journal)
    for entry in entries:
        journal.append(entry, journal.head)
    journal.close()
    return tmp_path


def log(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(APP, ["log", *map(str, arguments)])


def test_every_entry_has_a_line_with_what_it_says(run_dir: Path, entries: tuple[Entry, ...]) -> None:
    result = log(run_dir)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) == len(entries)
    for line, entry in zip(lines, entries, strict=True):
        assert line.split()[0] == str(entry.index)
        if isinstance(entry, Round):
            assert all(f"{one.site} (weight {one.weight})" in line for one in entry.members)
        if isinstance(entry, Away | Skip):
            assert entry.why in line


def test_json_is_the_lines_themselves(run_dir: Path, entries: tuple[Entry, ...]) -> None:
    lines = log(run_dir, "--json").stdout.splitlines()
    assert lines == [line_of(entry) for entry in entries]
    assert json.loads(lines[0])["kind"] == "genesis"


def test_follow_ends_with_the_run(run_dir: Path) -> None:
    journal = SqliteJournal(RunDir(run_dir).journal)
    for site in journal.verify()[0].live:
        head = journal.head
        journal.append(Left(index=head.index + 1, prev=head.hash, term=0, site=site), head)
    head = journal.head
    journal.append(End(index=head.index + 1, prev=head.hash, term=0), head)
    result = log(run_dir, "--follow")
    assert result.exit_code == 0, result.output
    assert "over" in result.stdout.splitlines()[-1]


def test_verify_finds_an_entry_that_was_changed(run_dir: Path, entries: tuple[Entry, ...]) -> None:
    result = log(run_dir, "--verify")
    assert result.exit_code == 0, result.output
    assert str(len(entries)) in result.stdout
    with sqlite3.connect(RunDir(run_dir).journal) as db:
        db.execute("UPDATE entries SET line = replace(line, '\"weight\":', '\"weight\":1') WHERE line LIKE '%weight%'")
    changed = log(run_dir, "--verify")
    assert changed.exit_code == 1
    assert "damaged" in changed.stderr
