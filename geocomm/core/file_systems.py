"""What geocomm asks of a file system: files that are whole, names that last, a folder that one process has."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Generator
from pathlib import Path

from geocomm.core.bad_input import BadInput

_OF_FUSE = ("sshfs", "ceph-fuse", "glusterfs", "s3fs", "gcsfuse", "rclone", "juicefs", "grpcfuse")
_OF_A_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "afs", "9p", "virtiofs", "lustre", "gpfs", "ceph", "beegfs", "pvfs2", "ocfs2"),
    *(f"fuse.{name}" for name in _OF_FUSE),
}
FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the system says where there is no room."""
_LOOK_S = 0.1


class FolderMarkError(ValueError):
    """The file is no mark of a folder."""


class FolderInUseError(OSError):
    """Another process has the folder; the text names it, such as "process 4711"."""


def network_file_system(folder: Path) -> str:
    """The kind of the file system that a folder is on, as Linux names it, where it is one of a network, which keeps
    neither SQLite's locks nor fsync; else empty."""
    kind = _file_system_of(folder)
    return kind if kind in _OF_A_NETWORK else ""


def free_bytes(folder: Path) -> int:
    """Bytes that may still be written under `folder`, or where it will be made."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def fsync_path(path: Path) -> None:
    """Bring a file to the disk, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(part: Path, path: Path) -> None:
    """Bring `part` to the disk, and give it the name `path` in the same folder, which stands for a whole file then."""
    fsync_path(part)
    part.replace(path)
    fsync_path(path.parent)


def put_folder_in_place(partial: Path, folder: Path) -> None:
    """Bring a folder with all that is in it to the disk, and give it the name `folder` beside it, in place of what has
    that name."""
    for path in [*partial.rglob("*"), partial]:
        fsync_path(path)
    if not folder.exists() or not any(folder.iterdir()):
        partial.rename(folder)  # onto an empty folder, too
        return
    stale = folder.with_name(f".stale-{folder.name}")
    shutil.rmtree(stale, ignore_errors=True)
    folder.rename(stale)
    partial.rename(folder)
    shutil.rmtree(stale, ignore_errors=True)


@contextlib.contextmanager
def new_folder(out: Path, *, replace: bool = False, mode: int = 0o777) -> Generator[Path]:
    """A partial folder beside `out`, to be filled. At the end of the block it becomes `out`; after an exception it is
    removed.

    replace: `out` may hold something, which then goes. mode: the folder's rights, less the umask. Raises BadInput where
    it must not, and for a full disk.
    """
    out = out.absolute()
    partial = out.with_name(f".partial-{out.name}")
    try:
        if not replace and out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise BadInput(f"{out} exists already and is not empty; name another folder, or remove it")
        _remove(partial)
        partial.mkdir(mode, parents=True)
        try:
            yield partial
            put_folder_in_place(partial, out)
        finally:
            _remove(partial)
    except OSError as error:
        free = free_bytes(out.parent) / 1e6
        raise BadInput(f"{out} cannot be written ({free:.0f} MB free there): {' '.join(str(error).split())}") from None


def write_whole(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Write a file, or leave what was there: it is on the disk on return. mode: its rights from the beginning, so that
    others cannot read a private one, not even for a moment. Threads may write the same file: one is the last."""
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    part.unlink(missing_ok=True)
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        put_in_place(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def held_by_one(lock: Path, limit_s: float = 0.0) -> Generator[None]:
    """Hold a file that one process at a time may, and that says which. FolderInUseError where another one does, and
    goes on to for `limit_s`."""
    with lock.open("a+") as file:
        until = time.monotonic() + limit_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    file.seek(0)
                    raise FolderInUseError(f"process {file.read().strip() or 'unknown'}") from None
            time.sleep(_LOOK_S)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def folder_mark(path: Path, owner: str) -> tuple[str, bool]:
    """Whose the folder of `path`, a file that says it, is: `owner` where nobody has marked it yet; and whether it is
    the copy of another, which a copied file's inode tells.

    Of several processes that come at once the first marks it; it is on the disk then. Raises OSError, and
    FolderMarkError for a file that cannot be read.
    """
    if not path.exists():
        part = path.with_name(f".{uuid.uuid4().hex}.part")
        with part.open("w") as file:
            json.dump({"id": owner, "inode": os.fstat(file.fileno()).st_ino}, file)
        fsync_path(part)
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
        part.unlink()
        fsync_path(path.parent)
    try:
        with path.open() as file:
            known = json.load(file)
            return str(known["id"]), known["inode"] != os.fstat(file.fileno()).st_ino
    except (ValueError, KeyError, TypeError):
        raise FolderMarkError(f"{path} cannot be read") from None


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _file_system_of(folder: Path) -> str:
    """The kind of a folder's file system as Linux names it; empty where that cannot be told."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
        real = folder.resolve()
    except OSError:
        return ""
    kinds = {Path(fields[1].replace("\\040", " ")): fields[2] for fields in map(str.split, mounts) if len(fields) > 2}
    return next((kinds[place] for place in (real, *real.parents) if place in kinds), "")
