"""The folder of a cache: shards by their hash, of one node or of several that share it.

A file gets its name only after its hash was compared and it was written through, so a name and a right size are trusted
ever after. `HASH.partial` is what somebody fetches, who holds a lock on it. `HASH.seen` says of a shard that lies in a
folder anyway which file had the right bytes, by size and time of change.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from geocomm.core.bad_input import BadInput

_RESERVE_SHARE = 0.05
_RESERVE_MOST = 10 << 30
"""What of the disk is left free where no size is given: the less of both. Below it the alert RunDiskFull fires."""


class CacheFolder:
    """Its methods raise OSError."""

    def __init__(self, path: Path, size: int | None) -> None:
        """size: the most bytes in it; None: what the disk has."""
        self.path, self._size = path, size

    def require(self, needed: int) -> None:
        """Make the folder. Raises BadInput where it cannot be written, or cannot hold so many bytes."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.path)
            if free.free - _reserve(free.total) >= needed <= (self._size or needed):
                return  # what is in it need not be looked through
            room = self._room()
        except OSError as error:
            raise BadInput(f"the cache {self.path} cannot be used: {error}; GEOCOMM_DATA_CACHE names another") from None
        if room < needed:
            raise BadInput(
                f"the cache {self.path} may hold {room / 1e9:.2f} GB, and two deals of this data set take "
                f"{needed / 1e9:.2f} GB: make room, or name another with GEOCOMM_DATA_CACHE and GEOCOMM_DATA_CACHE_SIZE"
            )

    def shard(self, sha256: str, size: int) -> Path | None:
        """The file of a shard that is here, whole."""
        path = self.path / sha256
        with suppress(OSError):
            if path.stat().st_size == size:
                return path
        return None

    def was_read(self, sha256: str) -> None:
        """What is read last goes first. Another one may have removed it."""
        with suppress(OSError):
            os.utime(self.path / sha256)

    @contextmanager
    def claimed(self, sha256: str) -> Generator[int | None]:
        """The partial file of a shard, for the one who fetches it, until the block ends; None: another one does."""
        path = self.path / f"{sha256}.partial"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            # Whoever had the lock until now may have given the file its name.
            same = path.exists() and os.stat(path).st_ino == os.fstat(descriptor).st_ino
            yield descriptor if same else None
        finally:
            os.close(descriptor)

    def keep(self, sha256: str, partial: int) -> None:
        """Give a claimed file, whose hash was compared, its name."""
        os.fsync(partial)
        os.utime(partial, (0, 0))  # not read yet: goes last
        (self.path / f"{sha256}.partial").rename(self.path / sha256)

    def drop(self, sha256: str) -> None:
        """Remove a claimed file."""
        (self.path / f"{sha256}.partial").unlink(missing_ok=True)

    def names(self) -> set[str]:
        """The hashes of the shards that are here, whole."""
        try:
            return {path.name for _, _, path in self._shards()}
        except FileNotFoundError:
            return set()

    def remove(self, sha256: str) -> None:
        """Have a shard not here."""
        (self.path / sha256).unlink(missing_ok=True)

    def make_room(self, size: int, kept: Collection[str]) -> None:
        """Remove the shards that were read last, none of `kept`, until so many bytes fit. OSError where they do not."""
        lacking = size - self._free()
        if lacking <= 0:
            return
        for _, used, path in sorted(self._shards(), reverse=True):
            if path.name not in kept:
                path.unlink(missing_ok=True)
                lacking -= used
            if lacking <= 0:
                return
        # Of the size that it was given: what else is full may have room again.
        code = errno.ENOSPC if self._size is None else errno.EFBIG
        raise OSError(code, f"no room for {size / 1e6:.0f} MB more, and all of it is read next")

    def seen(self, sha256: str) -> Path | None:
        """The file, outside, that had the right bytes, and is as it was."""
        with suppress(OSError, ValueError):
            name, *stamp = json.loads((self.path / f"{sha256}.seen").read_bytes())
            if stamp == _stamp(Path(name)):
                return Path(name)
        return None

    def saw(self, sha256: str, path: Path) -> None:
        """Remember it, where the folder can be written."""
        with suppress(OSError):
            self.path.mkdir(parents=True, exist_ok=True)
            partial = self.path / f"{sha256}.{os.getpid()}.seen"
            partial.write_text(json.dumps([str(path), *_stamp(path)]))
            partial.rename(self.path / f"{sha256}.seen")

    def _shards(self) -> list[tuple[float, int, Path]]:
        """When each was read, its size, its file."""
        found: list[tuple[float, int, Path]] = []
        for entry in os.scandir(self.path):
            if len(entry.name) == 64:
                with suppress(FileNotFoundError):
                    said = entry.stat()
                    found.append((said.st_mtime, said.st_size, Path(entry.path)))
        return found

    def _room(self) -> int:
        used = sum(size for _, size, _ in self._shards())
        disk = shutil.disk_usage(self.path)
        most = used + disk.free - _reserve(disk.total)
        return most if self._size is None else min(self._size, used + disk.free)

    def _free(self) -> int:
        return self._room() - sum(size for _, size, _ in self._shards())


def _reserve(disk: int) -> int:
    return min(int(disk * _RESERVE_SHARE), _RESERVE_MOST)


def _stamp(path: Path) -> list[int]:
    said = path.stat()
    return [said.st_size, said.st_mtime_ns]
