"""Where a reader gets a stream from: sources in order, and a folder in which it keeps what it has fetched.

The folder has the form of a stream. What is in it has been compared with its hash, or its signature was looked at: so
it can be given out. Thread-safe.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial as partial_of
from pathlib import Path
from typing import Any, TypeVar

from geocomm.core.errors import DataError
from geocomm.core.file_systems import write_whole
from geocomm.core.message_log import CalmLog, logger
from geocomm.core.patience import pauses
from geocomm.data.places import FilePlace, Folder, error_line
from geocomm.data.shard_stores import IN_FLIGHT, RANGE_BYTES, TokenBucket, fetch
from geocomm.security.key_folder import Keys
from geocomm.weights.relay_place import HELD_S, RelayPlace
from geocomm.weights.stream_version import (
    FRAMES,
    MOST_FILE_BYTES,
    FrameFile,
    Hint,
    StreamFile,
    WeightVersion,
    frame_path,
    hint_of,
    layout_path,
    read_layout,
    read_version,
    version_numbers,
    version_path,
)
from geocomm.weights.weight_layout import WeightLayout

_Read = TypeVar("_Read")
_CALM_S = 60.0
_PAUSE_S = (0.2, 5.0)
_SILENT_S = 5.0
_LOOK_S = 0.1
_LEAST_RANGE = 64 << 10
_SAME_S = 30.0
"""After which the other sources are asked whether there is no newer version."""


class SilentError(DataError):
    """No source answers; one may later."""


class _PathLocks:
    """A lock for each path, for as long as somebody has it or waits: there is no end of paths that may be asked for."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._of: dict[str, tuple[threading.Lock, int]] = {}
        """Locks, and how many have each or wait for it."""

    @contextmanager
    def of(self, path: str) -> Generator[None]:
        """Nobody else is in a block of this path."""
        with self._guard:
            lock, users = self._of.get(path) or (threading.Lock(), 0)
            self._of[path] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                _, users = self._of.pop(path)
                if users > 1:
                    self._of[path] = lock, users - 1


class StreamSources:
    """The versions, layouts and frames of one stream. Methods raise DataError, and OSError of the own disk."""

    def __init__(
        self,
        places: Sequence[FilePlace],
        folder: Path,
        *,
        keys: Keys | None,
        publisher: str = "",
        rate: float | None = None,
        wait_s: float,
    ) -> None:
        """keys: versions must be signed; publisher: by this site; empty: by any of the job. rate: bytes a second at
        most. wait_s: how long a source that does not answer is asked again, where no other one has the file."""
        self.folder, self._kept = folder, Folder(str(folder), folder)
        self._places, self._keys, self._publisher, self._wait_s = places, keys, publisher, wait_s
        self._pace = None if rate is None else TokenBucket(lambda: rate)
        self._one_at_a_time = _PathLocks()
        self._good: dict[str, tuple[str, Any]] = {}
        """SHA-256 of the files of versions and layouts, and what is in them, by their paths."""
        self._complain = CalmLog(logger().warning, _CALM_S)
        self._silent_until = dict.fromkeys(places, 0.0)
        self._told, self._told_at, self._leads_to = 0, 0.0, ""
        self.is_closed = False
        self.trouble = ""
        """Why a file is not had yet, for messages; empty: nothing is wrong."""
        for left in folder.glob(f"{FRAMES}*/.*.partial"):  # of a process that died
            left.unlink()
        self.fetched_bytes = 0

    @property
    def names(self) -> str:
        """The sources, for messages."""
        return ", ".join(place.url for place in self._places)

    def stop(self) -> None:
        """End what waits for a source. For handlers of signals, too."""
        self.is_closed = True

    def close(self) -> None:
        """Do so, and close the connections."""
        self.stop()
        for place in self._places:
            place.close()

    def newest(self) -> Hint | None:
        """The newest version that a source tells of and one gives; None: there is none. It can be had by `version`.

        The first source that has one is asked alone; the others too where it tells of the same for a while, or of one
        that nobody gives: it may be held up, or lie. SilentError; DataError: what is told of is not good.
        """
        best: Hint | None = None
        said, bad, asks_all = list[str](), list[DataError](), False
        for place in self._in_order(self._places):
            if best is not None and not asks_all:
                if not self._is_long_the_same(best.number):
                    break
                asks_all = True
            try:
                told = hint_of(place) or _listed(place)
            except OSError as error:
                self._silent_until[place] = time.monotonic() + _SILENT_S
                said.append(f"{place.url}: {error_line(error)}")
                continue
            try:
                if told is not None and told.number > (0 if best is None else best.number):
                    self._look_at(told)
                    best = told
            except DataError as error:
                bad.append(error)
        if best is None and bad:
            raise bad[0]
        if best is None and said:
            raise SilentError(f"no source of weights answers: {'; '.join(said)}")
        for error in bad:
            self._complain(str(error))
        self.trouble = ""
        return best

    def await_newer(self, number: int) -> None:
        """Return once the first source tells of a newer version than this, as relays and folders can; after HELD_S at
        the latest."""
        place, until = self._in_order(self._places)[0], time.monotonic() + HELD_S
        answers = True
        while not self.is_closed and time.monotonic() < until:
            time.sleep(_LOOK_S)  # one that lies is not asked all the time either
            try:
                if answers and isinstance(place, RelayPlace):
                    place.await_newer(number)
                    return
                if answers and isinstance(place, Folder) and (told := hint_of(place)) and told.number > number:
                    return
            except FileNotFoundError:  # there is no version at all
                answers = False
            except OSError:
                answers, self._silent_until[place] = False, time.monotonic() + _SILENT_S

    def _is_long_the_same(self, told: int) -> bool:
        """Whether the newest version was this one for a while; then the while begins again."""
        now = time.monotonic()
        is_long = told == self._told and now - self._told_at > _SAME_S
        if told != self._told or is_long:
            self._told, self._told_at = told, now
        return is_long

    def _look_at(self, told: Hint) -> None:
        """Have a version that a source tells of, and keep nothing that does not lead to it: another stream may have
        taken the place of the one that it is of."""
        version = self._signed(told.number, told.sha256)
        if told.sha256 != self._leads_to:
            others = [one for one in version_numbers(self._kept) if one != told.number]
            if others and not self._leads(others[-1], version):
                for path in map(version_path, others):
                    self._kept.remove(path)
                    self._good.pop(path, None)
            self._leads_to = told.sha256
        version.require_reader(self._keys)  # after it is kept: what is for others is not fetched at each look

    def _leads(self, number: int, version: WeightVersion) -> bool:
        """Whether the kept version of this number, and so all before it, may be of the way to `version`."""
        with suppress(OSError):  # DataError is one
            kept = read_version(self._kept.read(version_path(number)), number, self._kept.url)
            is_next = number + 1 == version.number
            is_base = version.base in (None, kept.result)
            return kept.stream == version.stream and number < version.number and (is_base or not is_next)
        return False

    def version(self, number: int) -> WeightVersion:
        """A version, whose signature was looked at, and which these keys may read."""
        version = self._signed(number)
        version.require_reader(self._keys)
        return version

    def _signed(self, number: int, sha256: str = "") -> WeightVersion:
        """A version, whose signature was looked at. sha256: as in `_small`."""

        def read(content: bytes, where: str) -> WeightVersion:
            version = read_version(content, number, where)
            if self._keys is not None:
                version.require_signer(self._keys, self._publisher)
            return version

        return self._small(version_path(number), read, sha256)

    def layout(self, sha256: str) -> WeightLayout:
        """A layout."""
        return self._small(layout_path(sha256), read_layout, sha256)

    def frame(self, number: int, frame: FrameFile) -> Path:
        """The file of a frame, in the folder."""
        relative = frame_path(number, frame.sha256)
        path = self.folder / relative
        with self._one_at_a_time.of(relative):
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                self._fetch(relative, frame, path)
        return path

    def forget_before(self, number: int) -> None:
        """Remove what is kept of versions before this one."""
        for name in self._kept.names():
            file = StreamFile.of(name)
            if file is not None and 0 < file.number < number:
                self._kept.remove(name)
                self._good.pop(name, None)

    def _in_order(self, places: Sequence[FilePlace]) -> list[FilePlace]:
        """Those that did not answer come last for a moment."""
        now = time.monotonic()
        return sorted(places, key=lambda place: self._silent_until[place] > now)

    def _small(self, path: str, read: Callable[[bytes, str], _Read], sha256: str) -> _Read:
        """A file that is looked at in memory: as it is kept, else from the first source whose file is good. sha256: of
        the file; empty: whichever there is."""

        def checked(content: bytes, where: str) -> tuple[str, _Read]:
            own, good = hashlib.sha256(content).hexdigest(), read(content, where)
            if sha256 not in ("", own):
                raise DataError(f"{path} of {where} is another one than it is said to be")
            return own, good

        kept = self.folder / path
        with self._one_at_a_time.of(path):
            if (good := self._good.get(path)) is None or sha256 not in ("", good[0]):
                try:
                    self._good[path] = checked(kept.read_bytes(), str(self.folder))
                except OSError:  # there is none, or another one
                    ask = partial_of(_whole_file, path=path, read=checked)
                    content, self._good[path] = self._asked(path, self._places, ask)
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    write_whole(kept, content)
            return self._good[path][1]

    def _asked(self, path: str, places: Sequence[FilePlace], ask: Callable[[FilePlace], _Read]) -> _Read:
        """What the first of these gives that has it. Those that do not answer are asked again, for a while. DataError:
        none has it, or gives what it should."""
        until, pause_s = time.monotonic() + self._wait_s, pauses(*_PAUSE_S)
        while True:
            said, silent = list[str](), False
            for place in self._in_order(places):
                try:
                    found = ask(place)
                    self.trouble = ""
                    return found
                except DataError as error:
                    said.append(str(error))
                except FileNotFoundError:
                    said.append(f"{place.url} has no {path}")
                except OSError as error:
                    silent, self._silent_until[place] = True, time.monotonic() + _SILENT_S
                    said.append(f"{place.url}: {error_line(error)}")
            self.trouble = "; ".join(said)
            if not silent or self.is_closed or time.monotonic() > until:
                raise DataError(self.trouble)
            time.sleep(next(pause_s))

    def _asked_range(self, path: str, places: Sequence[FilePlace], start: int, count: int) -> bytes:
        got = bytearray()  # what a connection gave until it broke is not fetched twice

        def ask(place: FilePlace) -> None:
            place.read_on(path, start, count, got)
            if len(got) != count:
                raise DataError(f"{path} of {place.url} is shorter than its version says")

        self._asked(path, places, ask)
        return bytes(got)

    def _ways(self) -> Iterator[Sequence[FilePlace]]:
        """Whom to ask for a frame: each range comes from whoever has it; if the bytes are wrong, all of it from one
        source after the other."""
        yield self._places
        if len(self._places) > 1:
            yield from ([place] for place in self._in_order(self._places))

    def _fetch(self, relative: str, frame: FrameFile, path: Path) -> None:
        """Get a frame."""
        part = path.with_name(f".{path.name}.partial")
        failure, most = "", RANGE_BYTES
        if isinstance(self._places[0], RelayPlace):  # each connection begins slowly: all are used for a small one, too
            most = min(most, max(_LEAST_RANGE, -(-frame.bytes // IN_FLIGHT)))
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            for places in self._ways():
                try:
                    read = partial_of(self._asked_range, relative, places)
                    found = fetch(read, frame.bytes, descriptor, self._pace, lambda: self.is_closed, most)
                except DataError as error:
                    if places is self._places:  # all were asked
                        raise
                    failure = str(error)
                    continue
                self.fetched_bytes += frame.bytes
                if found == frame.sha256:
                    os.fsync(descriptor)
                    part.rename(path)
                    return
                failure = (
                    f"{relative} of {', '.join(place.url for place in places)} has other bytes than its version says"
                )
                self._complain(failure)
            raise DataError(failure)
        finally:
            os.close(descriptor)
            part.unlink(missing_ok=True)


def _whole_file(place: FilePlace, path: str, read: Callable[[bytes, str], Any]) -> tuple[bytes, Any]:
    content = place.read(path, 0, MOST_FILE_BYTES + 1)  # in one round trip
    if len(content) > MOST_FILE_BYTES:
        raise DataError(f"{path} of {place.url} has more than {MOST_FILE_BYTES} bytes")
    return content, read(content, place.url)


def _listed(place: FilePlace) -> Hint | None:
    """The newest version of those that a place lists, where it tells of none. OSError."""
    if not (numbers := version_numbers(place)):
        return None
    return Hint.of(numbers[-1], place.read(version_path(numbers[-1]), 0, MOST_FILE_BYTES + 1))
