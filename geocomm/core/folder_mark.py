"""A file that says whose a folder is. A copied file has another inode, which tells a copy of the folder."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from pathlib import Path

from geocomm.core.file_systems import fsync_folder


class FolderMarkError(ValueError):
    """The file is no such mark."""


def folder_mark(path: Path, owner: str) -> tuple[str, bool]:
    """Whose the folder of `path` is, `owner` where nobody has marked it yet; and whether it is the copy of another.

    Of several processes that come at once the first marks it; it is on the disk then. Raises OSError, and
    FolderMarkError for a file that cannot be read.
    """
    if not path.exists():
        part = path.with_name(f".{uuid.uuid4().hex}.part")
        with part.open("w") as file:
            json.dump({"id": owner, "inode": os.fstat(file.fileno()).st_ino}, file)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
        part.unlink()
        fsync_folder(path.parent)
    try:
        with path.open() as file:
            known = json.load(file)
            return str(known["id"]), known["inode"] != os.fstat(file.fileno()).st_ino
    except (ValueError, KeyError, TypeError):
        raise FolderMarkError(f"{path} cannot be read") from None
