"""Snapshots: the states of all fragments as they were at one entry of the journal, kept in the run folder.

    RUN_DIR/snapshots/I/P@V.state        fragment P at the version V that it had at entry I: a hard link, so no copy
    RUN_DIR/snapshots/I/layout.json      where the values of each parameter lie in the fragments
    RUN_DIR/snapshots/I/manifest.json    written last: it makes the snapshot complete at this site

The leader appends an entry `snapshot`, and every site keeps its own states: nothing goes over the line.
What the journal says before the snapshots that sites have is forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash
from pydantic import ValidationError

from geocomm.core.bad_input import BadInput
from geocomm.core.file_systems import write_whole
from geocomm.core.records import Hash, Record, Text, Whole, line_of
from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.fragment_store import FragmentStore, file_digest
from geocomm.elastic.journal.entries import BadLineError, Digest, Snapshot
from geocomm.elastic.journal.journal import NoJournalError, SqliteJournal
from geocomm.elastic.journal.run_state import GONE_BACK_TO, RunState

if TYPE_CHECKING:
    import numpy as np


KEPT = GONE_BACK_TO
"""Newest snapshots of a site, and newest ones of which the journal says that enough sites have them: others go."""


class SnapshotError(BadInput, ValueError):
    """A snapshot that is not there, not complete, or damaged; the message says what to do."""


class Manifest(Record):
    """What a snapshot has: equal at every site that has it."""

    run: Text
    index: Whole
    """The index of the snapshot's entry."""
    entry: Hash
    """The hash of the snapshot's entry."""
    versions: tuple[Whole, ...]
    digests: tuple[Digest, ...]
    """The digests of the states, by fragment."""

    @property
    def digest(self) -> Digest:
        """The digest of the whole snapshot."""
        return xxhash.xxh3_128(line_of(self).encode()).hexdigest()


class Layout(Record):
    """Where the values of the trained parameters lie: in the order of the fragment's buffer."""

    layout: Digest
    fragments: tuple[tuple[tuple[Text, Whole, Whole], ...], ...]
    """By fragment: the elements [start, stop) of a parameter, in memory order."""
    shapes: dict[Text, tuple[Whole, ...]]


class Snapshots:
    """The snapshots in one run folder. Methods raise OSError where the disk does."""

    def __init__(self, store: FragmentStore) -> None:
        self._store = store
        self.files = store.files

    def write_layout(self, layout: Layout) -> None:
        """Keep what `weights` needs."""
        write_whole(self.files.layout, line_of(layout))

    def keep_state(self, index: int, fragment: int, version: int) -> None:
        """Take a state that is in the store into the snapshot of entry `index`."""
        kept = self._state_path(index, fragment, version)
        kept.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.link(self._store.state_path(fragment, version), kept)

    def completed(self, entry: Snapshot, run: str) -> Manifest | None:
        """The manifest of a snapshot, which is written once all states are there. None: some are not. SnapshotError:
        the disk has changed one since it was written."""
        with contextlib.suppress(SnapshotError):  # of one that cannot be read: it is written anew
            if (manifest := self._manifest(entry.index)) is not None:
                return manifest
        folder = self.files.snapshot(entry.index)
        paths = [self._state_path(entry.index, p, v) for p, v in enumerate(entry.versions)]
        if not all(path.exists() for path in paths):
            return None
        digests = tuple(
            self._unchanged(path, p, v) for p, (path, v) in enumerate(zip(paths, entry.versions, strict=True))
        )
        manifest = Manifest(run=run, index=entry.index, entry=entry.hash, versions=entry.versions, digests=digests)
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            os.link(self.files.layout, folder / self.files.LAYOUT)
        write_whole(self.files.manifest(entry.index), line_of(manifest))
        return manifest

    def _unchanged(self, path: Path, fragment: int, version: int) -> Digest:
        """The digest of a state that was just written: a site may be the only one that is to keep it."""
        digest = file_digest(path, version)
        if self._store.has_changed(fragment, version, digest):
            raise SnapshotError(f"{path} does not have the bits that were written: this disk has changed them")
        return digest

    def manifests(self) -> list[Manifest]:
        """Manifests of the complete snapshots, the oldest first: one whose manifest cannot be read is not complete."""
        found: list[Manifest] = []
        for index in self.indices():
            with contextlib.suppress(SnapshotError):
                if (manifest := self._manifest(index)) is not None:
                    found.append(manifest)
        return found

    def indices(self) -> list[int]:
        """Indices of all snapshots, complete or not, the oldest first."""
        return _indices(self.files)

    def prune(self, kept: Collection[int]) -> None:
        """Remove what is neither among the newest of this site nor among the newest in `kept`."""
        complete = [manifest.index for manifest in self.manifests()]
        needed = {*complete[-KEPT:], *[index for index in complete if index in kept][-KEPT:], *self.indices()[-1:]}
        for index in self.indices():
            if index not in needed:
                shutil.rmtree(self.files.snapshot(index), ignore_errors=True)

    def remove_from(self, index: int) -> None:
        """Remove those of entry `index` and later ones: these are no entries of the run any more."""
        for void in self.indices():
            if void >= index:
                shutil.rmtree(self.files.snapshot(void), ignore_errors=True)

    def verified(self, index: int) -> Manifest:
        """The manifest of a snapshot whose states have the bits that it says. SnapshotError for any other."""
        manifest = self.manifest(index)
        for fragment, (version, digest) in enumerate(zip(manifest.versions, manifest.digests, strict=True)):
            path = self._state_path(index, fragment, version)
            if not path.exists() or file_digest(path, version) != digest:
                raise SnapshotError(
                    f"snapshot {index} is damaged: {path} does not have the bits that were kept. Take another "
                    "snapshot, or this one from another site"
                )
        return manifest

    def manifest(self, index: int) -> Manifest:
        """The manifest of a complete snapshot. SnapshotError: there is none."""
        manifest = self._manifest(index)
        if manifest is None:
            there = ", ".join(str(one.index) for one in self.manifests()) or "none"
            raise SnapshotError(f"{self._store.run_dir} has no complete snapshot {index}; it has {there}")
        return manifest

    def size(self, index: int) -> int:
        """Bytes of its states, which it shares with the store while that has them too."""
        return sum(path.stat().st_size for path in self.files.snapshot(index).glob("*.state"))

    def _state_path(self, index: int, fragment: int, version: int) -> Path:
        return self.files.snapshot(index) / self._store.state_path(fragment, version).name

    def _manifest(self, index: int) -> Manifest | None:
        try:
            return Manifest.model_validate_json(self.files.manifest(index).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.strerror or error
            raise SnapshotError(
                f"{self.files.manifest(index)} cannot be read as the manifest of a snapshot ({why}); remove the folder"
            ) from None

    # ---- out of a snapshot

    def weights(self, index: int) -> Iterator[tuple[str, np.ndarray[Any, np.dtype[np.float32]]]]:
        """The trained parameters of a snapshot, by name: its anchors, float32. SnapshotError for a damaged one."""
        import numpy as np  # an agent, which needs none of this, starts in less time without

        manifest = self.verified(index)
        try:
            layout = Layout.model_validate_json((self.files.snapshot(index) / self.files.LAYOUT).read_bytes())
        except (FileNotFoundError, ValidationError):
            raise SnapshotError(
                f"snapshot {index} has no {self.files.LAYOUT} that can be read: take the snapshot of another site"
            ) from None
        pieces: dict[str, list[tuple[int, np.ndarray[Any, np.dtype[np.float32]]]]] = {}
        for fragment, ranges in enumerate(layout.fragments):
            path = self._state_path(index, fragment, manifest.versions[fragment])
            values, offset = np.memmap(path, np.float32, "r"), 0
            for name, start, stop in ranges:
                pieces.setdefault(name, []).append((start, values[offset : offset + stop - start]))
                offset += stop - start
        for name, shape in layout.shapes.items():
            parts = [values for _, values in sorted(pieces.get(name, []), key=lambda piece: piece[0])]
            if sum(len(values) for values in parts) != math.prod(shape):
                raise SnapshotError(f"snapshot {index} does not have all values of {name}; take that of another site")
            yield name, np.concatenate(parts).reshape(shape) if parts else np.zeros(shape, np.float32)

    def restore(self, index: int, into: Path, site: str, address: str) -> None:
        """Make a run folder in which the run stands where it stood at the snapshot: of this site, which leads it at
        `address` (host:port). The run's entries since then are not in it. SnapshotError where that cannot be."""
        manifest = self.verified(index)
        if into.exists() and any(into.iterdir()):
            raise SnapshotError(f"{into} is not empty: choose a folder that is, or is not there yet")
        store = FragmentStore(into)
        for fragment, version in enumerate(manifest.versions):
            with store.arriving(store.state_path(fragment, version)) as part:
                shutil.copyfile(self._state_path(index, fragment, version), part)
        with contextlib.closing(SqliteJournal(self.files.journal, read_only=True)) as old:
            found = old.hash_at(index)
            if found is None:
                raise SnapshotError(
                    f"the journal in {self._store.run_dir} no longer has entry {index}, which the snapshot is of: "
                    f"restore one of the last {KEPT}"
                )
            if found != manifest.entry:
                raise SnapshotError(f"entry {index} of {self._store.run_dir} is not the one that the snapshot is of")
            term = old.state().term + 1  # above that of every site that knows of later entries
            old.copy_to(RunDir(into).journal, index)
        with contextlib.closing(SqliteJournal(RunDir(into).journal)) as new:
            head = new.verify()[0].head
            new.append(new.term_begun(term, site, address), head)


def _indices(files: RunDir) -> list[int]:
    """Of the snapshots in a run folder, complete or not, the oldest first; what else lies there is somebody else's."""
    if not files.snapshots.is_dir():
        return []
    return sorted(int(path.name) for path in files.snapshots.iterdir() if path.name.isdecimal() and path.is_dir())


async def forget(path: Path, state: RunState, log: Callable[[str], None]) -> None:
    """Put a state in the place of the entries of a journal before the snapshots that sites have. state: of the run."""
    before = state.needed_from
    try:
        await asyncio.to_thread(_forget, path, before)
    except (sqlite3.Error, NoJournalError, BadLineError) as error:
        log(f"{path} still has the entries before {before} ({error}), until a later snapshot is kept")


def _forget(path: Path, before: int) -> None:
    files = RunDir(path.parent)
    own = [index for index in _indices(files) if files.manifest(index).exists()]
    if any(files.fragments.glob("*.state")) and before not in own:
        return  # this site's own states may be older: it goes on from them with these entries
    before = min([before, *own])  # each of its snapshots can be restored, with the entry that it is of
    with contextlib.closing(SqliteJournal(path)) as journal:
        journal.forget(before)
