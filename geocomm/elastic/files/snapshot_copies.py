"""Copies of kept snapshots where fsspec can write: a bucket, another machine, a folder.

    URL/I/P@V.state, URL/I/layout.json    as in the run folder
    URL/I/journal.sqlite                  up to the entry that says that the snapshot is kept
    URL/I/run.json                        the site, and where the run was led
    URL/I/manifest.json                   there last, as a whole, and gone first: it makes the copy complete

`fetch` makes a run folder of one, out of which everything is done as out of any other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from geocomm.core.installation import install_command
from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.files.known_agents import About, about
from geocomm.elastic.files.snapshots import KEPT, Manifest, SnapshotError, Snapshots
from geocomm.elastic.journal.entries import Kept
from geocomm.elastic.journal.journal import RunReader, SqliteJournal

_WRITING = "manifest.writing"
_LOOK_S = 2.0
_AGAIN_S = 60.0
"""After a failure."""


def is_url(where: str) -> bool:
    """Whether this names copies elsewhere, and no folder of this machine."""
    return "://" in where


class SnapshotCopies:
    """The copies below one URL, all of one run. Methods raise OSError, and what the storage raises."""

    def __init__(self, url: str) -> None:
        """SnapshotError: fsspec, or what it needs for this kind of URL, is not installed."""
        try:
            from fsspec import core
        except ImportError:
            raise SnapshotError(f"{url} needs fsspec: {install_command('snapshots')}") from None
        untyped: Any = core
        try:
            self._files, root = untyped.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise SnapshotError(f"{url} cannot be used: {error}") from None
        self.url, self._root = url, str(root).rstrip("/")

    def manifests(self) -> list[Manifest]:
        """Manifests of the complete copies, the oldest first: one whose manifest cannot be read is not complete."""
        found: list[Manifest] = []
        for index in self._indices():
            with contextlib.suppress(FileNotFoundError, ValidationError):
                manifest = self._files.cat_file(self._at(index, RunDir.MANIFEST))
                found.append(Manifest.model_validate_json(manifest))
        return found

    def _indices(self) -> list[int]:
        """Of the copies, complete or not, the oldest first."""
        self._files.invalidate_cache()
        try:
            names = [str(path).rstrip("/").rpartition("/")[2] for path in self._files.ls(self._root, detail=False)]
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isdecimal())

    def size(self, index: int) -> int:
        """Bytes of a copy."""
        return int(self._files.du(self._at(index)))

    def copy(self, run_dir: Path, kept: Kept) -> None:
        """Copy a kept snapshot out of a run folder; older copies than the newest two go. SnapshotError: the URL has
        those of another run."""
        index, files = kept.snapshot, RunDir(run_dir)
        manifest = Manifest.model_validate_json(files.manifest(index).read_bytes())
        before = self.manifests()
        if other := next((one.run for one in before if one.run != manifest.run), None):
            raise SnapshotError(
                f"{self.url} has snapshots of run {other[:12]}, and this is run {manifest.run[:12]}: use another URL"
            )
        if manifest in before:
            return
        self._files.makedirs(self._at(index), exist_ok=True)
        with _linked(files, index) as made:
            with contextlib.closing(SqliteJournal(files.journal, read_only=True)) as journal:
                journal.copy_to(RunDir(made).journal, kept.index)
            said = about(run_dir)
            About(site=said.site, leader=said.leader, journal=said.journal).write(made)
            states = [path.name for path in made.glob("*.state")]
            for name in (*states, RunDir.LAYOUT, RunDir.JOURNAL, RunDir.ABOUT):
                self._files.put_file(str(made / name), self._at(index, name))
            # Many storages show a file while it is written; a reader must not take half a manifest for one.
            self._files.put_file(str(made / RunDir.MANIFEST), self._at(index, _WRITING))
        self._files.mv(self._at(index, _WRITING), self._at(index, RunDir.MANIFEST))
        first = [*(one.index for one in before), index][-KEPT:][0]
        for one in before:
            if one.index < first:
                self._files.rm_file(self._at(one.index, RunDir.MANIFEST))
        for of in self._indices():  # also what a process left that died while it made or removed a copy
            if of < first:
                self._files.rm(self._at(of), recursive=True)

    def fetch(self, index: int | None, into: Path) -> int:
        """Make a run folder of a copy, by default the newest; its index. SnapshotError: there is none."""
        there = [one.index for one in self.manifests()]
        if not there or index not in (None, *there):
            which = "" if index is None else f" {index}"
            raise SnapshotError(f"{self.url} has no complete snapshot{which}; it has {there or 'none'}")
        index = there[-1] if index is None else index
        folder = RunDir(into).snapshot(index)
        folder.mkdir(parents=True)
        for path in self._files.ls(self._at(index), detail=False):
            name = str(path).rpartition("/")[2]
            to = into if name in (RunDir.JOURNAL, RunDir.ABOUT) else folder
            self._files.get_file(str(path), str(to / name))
        return index

    def _at(self, index: int, *name: str) -> str:
        return "/".join((self._root, str(index), *name))


@contextlib.contextmanager
def _linked(files: RunDir, index: int) -> Generator[Path]:
    """The files of a snapshot under other names, for as long as they are copied: meanwhile newer ones may be kept, and
    this one removed."""
    made = files.copying
    shutil.rmtree(made, ignore_errors=True)  # of a process that died
    made.mkdir()
    try:
        for path in files.snapshot(index).iterdir():
            os.link(path, made / path.name)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def copy_kept_snapshots(copies: SnapshotCopies, store: FragmentStore, log: Callable[[str], None]) -> None:
    """Copy each snapshot once it is kept, in a thread that ends with the process."""

    def watch() -> None:
        done, run = -1, RunReader(store.files.journal)
        while True:
            time.sleep(_LOOK_S)
            try:
                kept = newest_kept(store, run)
                if kept is not None and kept.snapshot > done:
                    copies.copy(store.run_dir, kept)
                    done = kept.snapshot
            except Exception as error:  # of whatever kind the storage has: the site trains on
                log(f"a snapshot cannot be copied to {copies.url} ({error}); it is tried again in {_AGAIN_S:g} s")
                time.sleep(_AGAIN_S)

    threading.Thread(target=watch, name="geocomm-copies", daemon=True).start()


def newest_kept(store: FragmentStore, run: RunReader) -> Kept | None:
    """The newest kept snapshot that is complete here."""
    complete = [one.index for one in Snapshots(store).manifests()]
    if not complete:
        return None
    kept = run.look(lambda state: [state.kept[index] for index in complete if index in state.kept])
    return kept[-1] if kept else None
