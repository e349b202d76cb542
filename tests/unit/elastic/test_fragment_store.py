from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import xxhash

from geocomm.elastic.files.fragment_store import FragmentStore, FrameLostError, StoreError
from support.small_disk import small_disk

PIECES = [memoryview(b"coded" * 1000), memoryview(b"exact")]
CONTENT = b"".join(PIECES)


def test_a_frame_is_found_by_its_hash_and_a_store_by_its_name(tmp_path: Path) -> None:
    store = FragmentStore(tmp_path / "run")
    frame = store.write_frame(2, 7, "a", PIECES)
    assert frame == hashlib.sha256(CONTENT).hexdigest()
    assert store.frame_path(2, 7, "a", frame) == tmp_path / f"run/fragments/2@7/a-{frame[:16]}.frame"
    again = FragmentStore(tmp_path / "run")
    assert again.store_id == store.store_id
    assert again.read_frame(2, 7, "a", frame) == CONTENT
    assert not again.has_frame(2, 7, "b", frame)
    assert FragmentStore(tmp_path / "other").store_id != store.store_id


def test_a_frame_with_other_bytes_is_not_there_any_more(tmp_path: Path) -> None:
    store = FragmentStore(tmp_path)
    frame = store.write_frame(0, 0, "a", PIECES)
    path = store.frame_path(0, 0, "a", frame)
    path.write_bytes(b"x" + CONTENT[1:])
    for _ in range(2):  # it has other bytes; it is gone
        with pytest.raises(FrameLostError) as lost:
            store.read_frame(0, 0, "a", frame)
        assert (lost.value.fragment, lost.value.version, lost.value.site, lost.value.frame) == (0, 0, "a", frame)
        assert not store.has_frame(0, 0, "a", frame)


def test_a_state_that_a_disk_has_changed_is_noticed_and_is_removed_with_its_digest(tmp_path: Path) -> None:
    store = FragmentStore(tmp_path)
    store.write_state(3, 7, PIECES)
    assert not store.has_changed(3, 7, store.state_digest(3, 7))
    store.state_path(3, 7).write_bytes(b"x" + CONTENT[1:])
    assert store.has_changed(3, 7, store.state_digest(3, 7))
    with pytest.raises(FileNotFoundError):
        store.read_state(3, 7)
    assert store.states(3) == []
    store.write_state(3, 8, PIECES)
    store.remove_before(3, 9)
    assert not [*tmp_path.glob("fragments/*")]
    (tmp_path / "fragments/3@9.state").write_bytes(CONTENT)  # of an earlier version of geocomm, or a full disk
    assert not store.has_changed(3, 9, store.state_digest(3, 9))


def test_states_have_digests_and_take_the_place_of_older_frames(tmp_path: Path) -> None:
    store = FragmentStore(tmp_path)
    frames = [store.write_frame(1, version, "a", [bytes([version])]) for version in range(6)]
    other = store.write_frame(11, 0, "a", PIECES)
    digests = {version: store.write_state(1, version, PIECES) for version in (2, 4)}
    assert digests[4] == xxhash.xxh3_128_hexdigest(b"4" + CONTENT) == store.state_digest(1, 4)
    assert (store.states(1), store.latest_state(1), store.latest_state(1, 3)) == ([2, 4], 4, 2)
    assert store.latest_state(11) is None
    store.remove_before(1, 4)
    assert store.states(1) == [4]
    assert [store.has_frame(1, version, "a", frame) for version, frame in enumerate(frames)] == [False] * 4 + [True] * 2
    assert store.has_frame(11, 0, "a", other)
    assert store.read_state(1, 4) == CONTENT


@pytest.mark.parametrize(("site", "frame"), [("../../x", "0" * 64), ("a", "../" * 21 + "x"), ("a", "0" * 63)])
def test_names_from_outside_lead_nowhere(tmp_path: Path, site: str, frame: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        FragmentStore(tmp_path).frame_path(0, 0, site, frame)


def test_the_copy_of_a_run_folder_is_refused_until_its_store_has_a_name_of_its_own(tmp_path: Path) -> None:
    store = FragmentStore(tmp_path / "run")
    frame = store.write_frame(0, 0, "a", PIECES)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with pytest.raises(StoreError, match="copy"):
        FragmentStore(tmp_path / "copy")
    (tmp_path / "copy" / "store-id").unlink()
    copy = FragmentStore(tmp_path / "copy")
    assert copy.store_id != store.store_id
    assert copy.read_frame(0, 0, "a", frame) == CONTENT
    (tmp_path / "run").rename(tmp_path / "moved")  # no copy
    assert FragmentStore(tmp_path / "moved").store_id == store.store_id


def test_what_a_dead_process_left_is_swept_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    store = FragmentStore(tmp_path)
    store.write_frame(0, 0, "a", PIECES)
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = tmp_path / f"fragments/0@0/.{dead.pid}-0.part"
    living = tmp_path / f"fragments/0@0/.{os.getpid()}-77.part"
    for path in (left, living):
        path.write_bytes(b"half")
    store.sweep()
    assert (left.exists(), living.exists()) == (False, True)


def test_a_full_disk_is_said_and_nothing_is_left_of_what_did_not_fit(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as folder:
        store = FragmentStore(folder)
        kept = store.write_frame(0, 0, "a", PIECES)
        with pytest.raises(OSError, match=r".+") as full:
            store.write_frame(0, 1, "a", [bytes(2 << 20)])
        assert full.value.errno == errno.ENOSPC
        assert not list(folder.rglob("*.part"))
        assert store.free_bytes > 0
        assert store.read_frame(0, 0, "a", kept) == CONTENT
