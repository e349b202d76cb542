"""Entries of the journal that no site needs any more go, while the run goes on."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

from geocomm.elastic.fragment_store import FRAGMENTS
from geocomm.elastic.snapshots import FOLDER, MANIFEST_FILE
from geocomm.journal.entries import BadLineError
from geocomm.journal.journal import NoJournalError, SqliteJournal
from geocomm.journal.run_state import RunState


async def forget(path: Path, state: RunState, log: Callable[[str], None]) -> None:
    """Put a state in the place of the entries of a journal before the snapshots that sites have. state: of the run."""
    before = state.needed_from
    try:
        await asyncio.to_thread(_forget, path, before)
    except (sqlite3.Error, NoJournalError, BadLineError) as error:
        log(f"{path} still has the entries before {before} ({error}), until a later snapshot is kept")


def _forget(path: Path, before: int) -> None:
    run_dir = path.parent
    own = sorted(int(manifest.parent.name) for manifest in (run_dir / FOLDER).glob(f"*/{MANIFEST_FILE}"))
    if any((run_dir / FRAGMENTS).glob("*.state")) and before not in own:
        return  # this site's own states may be older: it goes on from them with these entries
    before = min([before, *own])  # each of its snapshots can be restored, with the entry that it is of
    with contextlib.closing(SqliteJournal(path)) as journal:
        journal.forget(before)
