"""What a site has of the run on its own disk: frames and states of fragments, and who it is that has them.

    RUN_DIR/store-id                              names this store: what a site holds belongs to it
    RUN_DIR/fragments/P@V/SITE-HASH16.frame       a frame of the round that takes fragment P from version V to V + 1
    RUN_DIR/fragments/P@V/SITE-HASH16.missed      seconds for which this site has looked for that frame in vain
    RUN_DIR/fragments/P@V.state                   fragment P at version V: anchor, then momentum, as raw float32
    RUN_DIR/fragments/P@V.digest                  that state's digest when it was written: a disk may change bytes

A file has its name only once all of it is on the disk: written beside, fsync, rename, fsync of the folder. So who sees
a file may say that it is held, and a process that dies leaves at most a part, which `sweep` removes. Ranks and their
agent use the same folder at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import secrets
import shutil
import uuid
from collections.abc import Generator, Sequence
from pathlib import Path

import xxhash

from geocomm.core.bad_input import EXIT_BAD_INPUT, UserError
from geocomm.core.file_systems import FolderMarkError, folder_mark, fsync_path, network_file_system, put_in_place
from geocomm.core.run_dir import RunDir
from geocomm.core.site import check_site_name

Piece = bytes | bytearray | memoryview

_STATE = re.compile(r"(\d+)@(\d+)\.state")
_OF_STATE = re.compile(r"(\d+)@(\d+)\.(?:state|digest)")
_FRAMES = re.compile(r"(\d+)@(\d+)")
_PART = re.compile(r"\.(\d+)-\d+\.part")
_READ_BYTES = 1 << 20
_MOST_MISSED_S = 1e9


class StoreError(UserError, ValueError):
    """A run folder that cannot be used; the message says what to do."""

    exit_status = EXIT_BAD_INPUT


class FrameLostError(FileNotFoundError):
    """A frame that is not on the disk, or had other bytes there and was removed."""

    def __init__(self, fragment: int, version: int, site: str, frame: str, why: str) -> None:
        super().__init__(why)
        self.fragment, self.version, self.site, self.frame = fragment, version, site, frame


class FragmentStore:
    """The frames and states in one run folder, which is made where it is not there. Methods raise OSError where the
    disk does (ENOSPC: it is full), and then leave nothing behind."""

    def __init__(self, run_dir: str | Path) -> None:
        """StoreError for a folder on a network's file system, and for the copy of another."""
        self.run_dir = Path(run_dir).absolute()
        self.files = RunDir(self.run_dir)
        self._folder = self.files.fragments
        self._numbers = itertools.count()
        self._folder.mkdir(parents=True, exist_ok=True)
        if kind := network_file_system(self.run_dir):
            raise StoreError(
                f"{self.run_dir} is on a file system of the network ({kind}), where neither the journal's locks nor "
                "fsync are reliable: choose a folder on a disk of this machine"
            )
        self.store_id = self._find_store_id()
        self.process = secrets.token_hex(16)
        """A random name of what has opened it."""

    @property
    def free_bytes(self) -> int:
        """On the disk of the folder."""
        return shutil.disk_usage(self.run_dir).free

    # ---- frames

    def frame_path(self, fragment: int, version: int, site: str, frame: str) -> Path:
        """Where the frame with the SHA-256 `frame` lies, or would. SiteNameError, ValueError for what cannot be one."""
        if not re.fullmatch(r"[0-9a-f]{64}", frame):
            raise ValueError(f"{frame[:80]!r} is not a SHA-256")
        return self._folder / f"{fragment:d}@{version:d}" / f"{check_site_name(site)}-{frame[:16]}.frame"

    def write_frame(self, fragment: int, version: int, site: str, pieces: Sequence[Piece]) -> str:
        """Keep a frame, the `pieces` one after the other; it is on the disk when this returns its SHA-256."""
        hasher = hashlib.sha256()
        for piece in pieces:
            hasher.update(piece)
        frame = hasher.hexdigest()
        path = self.frame_path(fragment, version, site, frame)
        if not path.exists():
            with self.arriving(path) as part:
                _write(part, pieces)
        return frame

    def has_frame(self, fragment: int, version: int, site: str, frame: str) -> bool:
        """Whether the frame is on the disk."""
        return self.frame_path(fragment, version, site, frame).exists()

    def read_frame(self, fragment: int, version: int, site: str, frame: str) -> bytes:
        """The bytes of the frame. Raises FrameLostError."""
        path = self.frame_path(fragment, version, site, frame)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise FrameLostError(fragment, version, site, frame, f"{path} is not there any more") from None
        if hashlib.sha256(content).hexdigest() != frame:
            path.unlink(missing_ok=True)
            raise FrameLostError(fragment, version, site, frame, f"{path} does not have the bytes of its name any more")
        return content

    def missed_s(self, fragment: int, version: int, site: str, frame: str) -> float:
        """For how long this site has looked for a frame that nobody had, over all its starts."""
        try:
            return min(float(int(self._missed_path(fragment, version, site, frame).read_text())), _MOST_MISSED_S)
        except (OSError, ValueError):  # none, or damaged: it looks for as long again
            return 0.0

    def keep_missed_s(self, fragment: int, version: int, site: str, frame: str, seconds: float) -> None:
        """Keep that; 0: nobody looks for the frame any more."""
        path = self._missed_path(fragment, version, site, frame)
        if not seconds:
            path.unlink(missing_ok=True)
            return
        with contextlib.suppress(OSError):  # see missed_s
            path.parent.mkdir(exist_ok=True)
            path.write_text(str(round(seconds)))

    def _missed_path(self, fragment: int, version: int, site: str, frame: str) -> Path:
        return self.frame_path(fragment, version, site, frame).with_suffix(".missed")

    # ---- states

    def state_path(self, fragment: int, version: int) -> Path:
        """Where the state of the fragment at that version lies, or would."""
        return self._folder / f"{fragment:d}@{version:d}.state"

    def write_state(self, fragment: int, version: int, pieces: Sequence[Piece]) -> str:
        """Keep a state: the bytes of the anchor, then of the momentum if there is one. Returns its digest."""
        digest = digest_of(version, pieces)
        with self.arriving(self.state_path(fragment, version)) as part:
            _write(part, pieces)
            self.keep_digest(fragment, version, digest)
        return digest

    def read_state(self, fragment: int, version: int) -> bytes:
        """The bytes of the state. FileNotFoundError: it is not there, or had other bits than when it was written, and
        was removed: whoever looked at the file before may have seen them."""
        path = self.state_path(fragment, version)
        content = path.read_bytes()
        if self.has_changed(fragment, version, digest_of(version, [content])):
            self.remove_state(fragment, version)
            raise FileNotFoundError(f"{path} does not have the bits that were written any more")
        return content

    def state_digest(self, fragment: int, version: int) -> str:
        """The digest of a state on the disk. FileNotFoundError: it is not there."""
        return file_digest(self.state_path(fragment, version), version)

    def keep_digest(self, fragment: int, version: int, digest: str) -> None:
        """Keep what a state is to have."""
        with contextlib.suppress(OSError):  # without it nobody notices what a disk changes
            self._digest_path(fragment, version).write_text(digest)

    def has_changed(self, fragment: int, version: int, digest: str) -> bool:
        """Whether a state whose digest is this now was written with another one, as far as that is known."""
        try:
            return self._digest_path(fragment, version).read_text() not in ("", digest)
        except (OSError, UnicodeDecodeError):
            return False

    def _digest_path(self, fragment: int, version: int) -> Path:
        return self.state_path(fragment, version).with_suffix(".digest")

    def remove_state(self, fragment: int, version: int) -> None:
        """Remove a state, if it is there."""
        self.state_path(fragment, version).unlink(missing_ok=True)
        self._digest_path(fragment, version).unlink(missing_ok=True)

    def states(self, fragment: int) -> list[int]:
        """The versions of the fragment whose states are here, the oldest first."""
        found = (_STATE.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[2]) for match in found if match and int(match[1]) == fragment)

    def latest_state(self, fragment: int, most: int | None = None) -> int | None:
        """The newest of them, which is not above `most`; None: there is none."""
        return max((version for version in self.states(fragment) if most is None or version <= most), default=None)

    def remove_before(self, fragment: int, version: int) -> None:
        """Remove the states below `version`, and the frames of rounds below it: a state at `version` has them all."""
        for path in list(self._folder.iterdir()):
            match = _OF_STATE.fullmatch(path.name) or _FRAMES.fullmatch(path.name)
            if match and int(match[1]) == fragment and int(match[2]) < version:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def remove_states_after(self, fragment: int, version: int) -> None:
        """Remove the states above `version`: what they were made of is void."""
        for held in self.states(fragment):
            if held > version:
                self.remove_state(fragment, held)

    # ---- arrivals

    @contextlib.contextmanager
    def arriving(self, path: Path) -> Generator[Path]:
        """A file to be written in the place of `path`, which gets that name, on the disk, when the block ends well."""
        part = self.new_part(path)
        try:
            yield part
            put_in_place(part, path)
        finally:
            part.unlink(missing_ok=True)

    def try_room(self, size: int) -> None:
        """Make a file of so many bytes, and remove it: OSError where the disk does not take it."""
        tried = self.new_part(self._folder / "tried")  # as a part: `sweep` removes it where this process dies
        try:
            with self.arriving(tried) as part:
                os.close(make_room(part, size))
        finally:
            tried.unlink(missing_ok=True)

    def new_part(self, path: Path) -> Path:
        """A name, in the folder of `path`, for what becomes that file."""
        if not path.parent.exists():
            path.parent.mkdir(exist_ok=True)
            fsync_path(path.parent.parent)
        return path.parent / f".{os.getpid()}-{next(self._numbers)}.part"

    def sweep(self) -> None:
        """Remove what processes left behind that died while they wrote."""
        for part in [*self._folder.glob(".*.part"), *self._folder.glob("*/.*.part")]:
            match = _PART.fullmatch(part.name)
            if match and not Path(f"/proc/{match[1]}").exists():
                part.unlink(missing_ok=True)

    def _find_store_id(self) -> str:
        """The name of this store, made at first. A copied file has another inode: that tells a copy of the folder,
        which does not hold what the first one says it does."""
        path = self.files.store_id
        try:
            store_id, copied = folder_mark(path, uuid.uuid4().hex)
        except FolderMarkError as error:
            raise StoreError(f"{error}; remove it, and the site joins the run with a new store") from None
        if copied:
            raise StoreError(
                f"{self.run_dir} is the copy of another run folder, and two stores of one name would vouch for each "
                f"other's frames: remove {path}, and the site joins the run with a new store"
            )
        return store_id


def digest_of(version: int, pieces: Sequence[Piece]) -> str:
    """XXH3-128 of the state of a fragment: its version, in digits, then the bytes of anchor and momentum."""
    hasher = xxhash.xxh3_128(str(version).encode())
    for piece in pieces:
        hasher.update(piece)
    return hasher.hexdigest()


def file_digest(path: Path, version: int) -> str:
    """What `digest_of` says of a state that lies in a file."""
    hasher = xxhash.xxh3_128(str(version).encode())
    with path.open("rb") as file:
        while content := file.read(_READ_BYTES):
            hasher.update(content)
    return hasher.hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_room(path: Path, size: int) -> int:
    """A new file of so many bytes, which the disk has set aside; its descriptor. OSError where there is no room."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        if size:
            os.posix_fallocate(descriptor, 0, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _write(path: Path, pieces: Sequence[Piece]) -> None:
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
