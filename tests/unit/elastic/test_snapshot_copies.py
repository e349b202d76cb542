"""What others see of a copy of a snapshot while it is made, and while it goes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.files.known_agents import About
from geocomm.elastic.files.snapshot_copies import SnapshotCopies
from geocomm.elastic.files.snapshots import SnapshotError, Snapshots
from geocomm.elastic.journal.entries import Kept, Snapshot
from geocomm.elastic.journal.journal import SqliteJournal

RUN = "1" * 32
FILES = {"0@1.state", RunDir.JOURNAL, RunDir.ABOUT, RunDir.MANIFEST}


def kept_snapshot(run_dir: Path, index: int) -> Kept:
    store = FragmentStore(run_dir)
    store.state_path(0, 1).write_bytes(bytes(1 << 20))
    snapshots = Snapshots(store)
    snapshots.keep_state(index, 0, 1)
    entry = Snapshot(index=index, prev="0" * 64, term=0, versions=(1,), state="2" * 64)
    manifest = snapshots.completed(entry, RUN)
    assert manifest is not None
    (snapshots.files.snapshot(index) / RunDir.LAYOUT).write_text("{}")
    return Kept(index=index + 1, prev="0" * 64, term=0, snapshot=index, digest=manifest.digest, sites=("a",))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    with contextlib.closing(SqliteJournal(RunDir(folder).journal)):
        pass
    About(site="a").write(folder)
    return folder


def watched(monkeypatch: pytest.MonkeyPatch, look: Callable[[], object]) -> None:
    """Files are put in halves, and before, between and after all changes somebody looks."""

    def put_file(self: LocalFileSystem, lpath: str, rpath: str, **_: Any) -> None:
        content = Path(lpath).read_bytes()
        for part in (content[: len(content) // 2], content):
            Path(rpath).write_bytes(part)
            look()

    def looking(change: Callable[..., object]) -> Callable[..., object]:
        def changed(self: LocalFileSystem, *arguments: Any, **options: Any) -> None:
            look()
            change(self, *arguments, **options)
            look()

        return changed

    def rm(self: LocalFileSystem, path: str, recursive: bool = False, **_: Any) -> None:
        assert recursive
        for file in sorted(Path(path).iterdir()):
            file.unlink()
            look()
        Path(path).rmdir()

    monkeypatch.setattr(LocalFileSystem, "put_file", put_file)
    monkeypatch.setattr(LocalFileSystem, "mv", looking(LocalFileSystem.mv))
    monkeypatch.setattr(LocalFileSystem, "rm_file", looking(LocalFileSystem.rm_file))
    monkeypatch.setattr(LocalFileSystem, "rm", rm)


def test_a_reader_sees_complete_copies_alone_while_they_come_and_go(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    copies, seen = SnapshotCopies(elsewhere.as_uri()), list[tuple[int, ...]]()

    def look() -> None:
        there = tuple(one.index for one in copies.manifests())
        for index in there:
            assert {path.name for path in (elsewhere / str(index)).iterdir()} >= FILES
        seen.append(there)

    watched(monkeypatch, look)
    for index in (10, 20, 30):
        copies.copy(run_dir, kept_snapshot(run_dir, index))
    assert list(dict.fromkeys(seen)) == [(), (10,), (10, 20), (10, 20, 30), (20, 30)]


def test_a_copy_whose_manifest_cannot_be_read_is_no_complete_one_and_is_made_again(
    tmp_path: Path, run_dir: Path
) -> None:
    copies = SnapshotCopies((tmp_path / "elsewhere").as_uri())
    for index in (10, 20):
        kept = kept_snapshot(run_dir, index)
        copies.copy(run_dir, kept)
    manifest = tmp_path / "elsewhere" / "20" / RunDir.MANIFEST
    manifest.write_bytes(manifest.read_bytes()[:20])
    assert [one.index for one in copies.manifests()] == [10]
    with pytest.raises(SnapshotError, match=r"no complete snapshot 20; it has \[10\]"):
        copies.fetch(20, tmp_path / "into")
    copies.copy(run_dir, kept)
    assert [one.index for one in copies.manifests()] == [10, 20]
    assert copies.fetch(None, tmp_path / "into") == 20


def test_what_is_left_of_copies_that_were_begun_or_removed_by_half_goes_with_the_older_ones(
    tmp_path: Path, run_dir: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    copies = SnapshotCopies(elsewhere.as_uri())
    for index in (10, 20, 30):
        (elsewhere / str(index - 5)).mkdir(parents=True)  # whoever made it has died meanwhile
        (elsewhere / str(index - 5) / "0@1.state").write_bytes(b"half")
        copies.copy(run_dir, kept_snapshot(run_dir, index))
    assert sorted(path.name for path in elsewhere.iterdir()) == ["20", "25", "30"]
