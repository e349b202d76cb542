"""A disk of few bytes and a thousand files, for tests of what happens when one is full."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, mib: int = 1) -> Generator[Path]:
    """The folder, which is made, as the root of such a disk. Skips the test where it may not be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,nr_inodes=1000", "tmpfs", folder]
    made = subprocess.run(mount, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"mounting a small disk needs root: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
