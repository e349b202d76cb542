"""Files that are written whole, and folders that one process has."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from geocomm.core.file_systems import FolderInUseError, held_by_one, write_whole

HOLDER = """
import sys
from pathlib import Path
from geocomm.core.file_systems import held_by_one
with held_by_one(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_file_that_is_not_written_leaves_the_one_before_and_no_part(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", "before")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "file", "\ud800")
    assert (tmp_path / "file").read_text() == "before"
    write_whole(tmp_path / "file", b"after")
    assert (tmp_path / "file").read_bytes() == b"after"
    assert os.listdir(tmp_path) == ["file"]


def test_private_file_is_private_from_the_beginning(tmp_path: Path) -> None:
    (tmp_path / f".key.{os.getpid()}").touch(0o644)  # of a process that died with the number of this one
    write_whole(tmp_path / "key", "secret", 0o600)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_folder_of_another_process_is_refused_by_its_number_until_that_has_ended(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(FolderInUseError, match=f"process {other.pid}"), held_by_one(lock):
            pass
        assert other.stdin is not None
        other.stdin.close()
        with held_by_one(lock, limit_s=60):
            assert lock.read_text() == str(os.getpid())


def test_threads_that_write_one_file_do_not_hinder_each_other(tmp_path: Path) -> None:
    def write(content: str) -> None:
        for _ in range(100):
            write_whole(tmp_path / "file", content)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, "abcd"))
    assert (tmp_path / "file").read_text() in "abcd"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
