"""What a site does with snapshots in its run folder beside which, or in which, something else lies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.files.snapshots import SnapshotError, Snapshots, forget
from geocomm.elastic.journal.entries import Snapshot
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.run_state import RunState
from support.made_entries import made_entries

RUN = "1" * 32


def entry(index: int) -> Snapshot:
    return Snapshot(index=index, prev="0" * 64, term=0, versions=(index,), state="2" * 64)


def complete(snapshots: Snapshots, store: FragmentStore, index: int) -> None:
    store.state_path(0, index).write_bytes(index.to_bytes(8, "little"))
    snapshots.keep_state(index, 0, index)
    assert snapshots.completed(entry(index), RUN) is not None


def manifest_of(snapshots: Snapshots, index: int) -> Path:
    return snapshots.files.manifest(index)


def no_file(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: list[Callable[[Path], object]] = [
    lambda path: path.write_text(path.read_text().replace("{", '{"made_by":"a later version",', 1)),
    lambda path: path.write_bytes(b"\xff\x00"),
    lambda path: path.write_bytes(b""),
    no_file,
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("index", [10, 20, 30])
def test_manifest_that_cannot_be_read_is_that_of_no_complete_snapshot(
    tmp_path: Path, damage: Callable[[Path], object], index: int
) -> None:
    store = FragmentStore(tmp_path)
    snapshots = Snapshots(store)
    for one in (10, 20, 30):
        complete(snapshots, store, one)
    damage(manifest_of(snapshots, index))
    assert [one.index for one in snapshots.manifests()] == [one for one in (10, 20, 30) if one != index]
    with pytest.raises(SnapshotError, match="remove the folder"):
        snapshots.verified(index)
    complete(snapshots, store, 40)
    snapshots.prune([10, 20, 30, 40])
    assert len(snapshots.manifests()) == 2


def test_own_manifest_that_cannot_be_read_is_written_anew(tmp_path: Path) -> None:
    store = FragmentStore(tmp_path)
    snapshots = Snapshots(store)
    complete(snapshots, store, 10)
    manifest_of(snapshots, 10).write_bytes(b"damaged")
    assert snapshots.completed(entry(10), RUN) == snapshots.verified(10)


def test_what_lies_beside_the_snapshots_is_left_alone_and_ends_nobody(tmp_path: Path) -> None:
    store = FragmentStore(tmp_path)
    snapshots = Snapshots(store)
    complete(snapshots, store, 10)
    manifest_of(snapshots, 10).parent.rename(snapshots.files.snapshots / "10.bak")
    complete(snapshots, store, 20)
    (snapshots.files.snapshots / "30").write_text("a file")
    (snapshots.files.snapshots / "\u00b2").mkdir()
    assert [one.index for one in snapshots.manifests()] == [20]
    snapshots.prune([])
    entries, said = made_entries(), list[str]()
    with contextlib.closing(SqliteJournal(RunDir(tmp_path).journal)) as journal:
        for one in entries:
            journal.append(one, journal.head)
    asyncio.run(forget(RunDir(tmp_path).journal, RunState.of(entries), said.append))
    assert said == []
    assert sorted(path.name for path in snapshots.files.snapshots.iterdir()) == ["10.bak", "20", "30", "\u00b2"]
