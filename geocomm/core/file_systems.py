"""What a file system promises: names that last, and which ones keep neither SQLite's locks nor fsync."""

from __future__ import annotations

import os
from pathlib import Path

_OF_A_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "afs", "9p"}


def network_file_system(folder: Path) -> str:
    """The kind of the file system that a folder is on, as Linux names it, where it is one of a network; else empty."""
    kind = _file_system_of(folder)
    return kind if kind in _OF_A_NETWORK else ""


def fsync_folder(folder: Path) -> None:
    """Bring the names of its files to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _file_system_of(folder: Path) -> str:
    """Its kind as Linux names it; empty where that cannot be told."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
        real = folder.resolve()
    except OSError:
        return ""
    kinds = {Path(fields[1].replace("\\040", " ")): fields[2] for fields in map(str.split, mounts) if len(fields) > 2}
    return next((kinds[place] for place in (real, *real.parents) if place in kinds), "")
