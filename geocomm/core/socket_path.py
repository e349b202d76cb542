"""Where a unix socket of a folder is: Linux takes short paths alone."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_LONGEST_PATH = 100


def socket_in(folder: Path, name: str) -> Path:
    """The socket `name` of a folder: in it, or in a folder of this user's where that path is too long."""
    path = folder.resolve() / name  # one name, whichever way a process has to the folder
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        return path
    place = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return Path(f"/tmp/geocomm-{os.getuid()}/{place}.sock")


def own_folder(folder: Path) -> None:
    """Make the folder of a socket. PermissionError where somebody else could put a socket of his own there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (owner := folder.lstat().st_uid) not in (0, os.getuid()):
        raise PermissionError(f"{folder} belongs to user {owner}")
