"""Checkpoints on one disk survive what happens to their writer."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from geocomm.train.runs import run_folder as folder


def _write(root: Path, step: int, mark: str = "") -> None:
    partial = folder.begin(root, step)
    (partial / folder.ENGINE_FOLDER).mkdir()
    (partial / folder.ENGINE_FOLDER / "weights").write_text(mark)
    (partial / folder.MANIFEST).write_text(json.dumps({"step": step, "mark": mark}))


def test_published_checkpoint_is_complete_and_latest(tmp_path: Path) -> None:
    _write(tmp_path, 5)
    assert folder.complete_checkpoints(tmp_path) == {}
    folder.publish(tmp_path, 5)
    assert list(folder.complete_checkpoints(tmp_path)) == [5]
    assert (tmp_path / folder.LATEST).read_text().strip() == folder.step_folder(tmp_path, 5).name


def test_killed_writer_leaves_the_old_checkpoint_and_its_pointer(tmp_path: Path) -> None:
    _write(tmp_path, 5, "old")
    folder.publish(tmp_path, 5)
    code = (
        "import os, signal, sys; from pathlib import Path;"
        "from geocomm.train.runs import run_folder as folder;"
        "root = Path(sys.argv[1]); partial = folder.begin(root, 6); (partial / 'weights').write_bytes(b'x' * 4096);"
        "(partial / folder.MANIFEST).write_text('{\"step\": 6}');"
        "os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL); folder.publish(root, 6)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert folder.partial_folder(tmp_path, 6).exists()
    assert list(folder.complete_checkpoints(tmp_path)) == [5]
    assert (tmp_path / folder.LATEST).read_text().strip() == folder.step_folder(tmp_path, 5).name
    _write(tmp_path, 6, "again")
    folder.publish(tmp_path, 6)
    assert folder.complete_checkpoints(tmp_path)[6]["mark"] == "again"


def test_same_step_again_replaces_the_old_one(tmp_path: Path) -> None:
    for mark in ("old", "new"):
        _write(tmp_path, 5, mark)
        folder.publish(tmp_path, 5)
    assert folder.complete_checkpoints(tmp_path)[5]["mark"] == "new"
    assert (folder.step_folder(tmp_path, 5) / folder.ENGINE_FOLDER / "weights").read_text() == "new"
    assert not list(tmp_path.glob(".stale*"))


def test_prune_keeps_the_newest_and_removes_leftovers(tmp_path: Path) -> None:
    for step in (1, 20, 3):
        _write(tmp_path, step)
        folder.publish(tmp_path, step)
    _write(tmp_path, 30)
    folder.prune(tmp_path, keep=2)
    assert list(folder.complete_checkpoints(tmp_path)) == [3, 20]
    assert not folder.partial_folder(tmp_path, 30).exists()


def test_damaged_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    for text in ("", "{", "[]", "{}", '{"step": null}'):
        target = tmp_path / "step-00000009"
        target.mkdir(exist_ok=True)
        (target / folder.MANIFEST).write_text(text)
        assert folder.complete_checkpoints(tmp_path) == {}
