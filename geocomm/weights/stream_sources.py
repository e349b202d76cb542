"""Where a reader gets a stream from: sources in order, and a folder in which it keeps what it has fetched.

The folder has the form of a stream. What is in it has been compared with its hash, or its signature was looked at: so
it can be given out. Thread-safe.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial as partial_of
from pathlib import Path
from typing import Any

from geocomm.core.errors import DataError
from geocomm.core.file_systems import write_whole
from geocomm.core.message_log import CalmLog, logger
from geocomm.core.patience import pauses
from geocomm.data.places import FilePlace, Folder
from geocomm.data.shard_fetch import TokenBucket, fetch
from geocomm.security.key_folder import Keys
from geocomm.weights.stream_place import newest_number, version_numbers
from geocomm.weights.stream_version import (
    FRAMES,
    MOST_FILE_BYTES,
    FrameFile,
    StreamFile,
    WeightVersion,
    frame_path,
    layout_path,
    read_layout,
    read_version,
    version_path,
)
from geocomm.weights.weight_layout import WeightLayout

_CALM_S = 60.0
_PAUSE_S = (0.2, 5.0)
_SILENT_S = 5.0


class SilentError(DataError):
    """No source answers; one may later."""


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
        self.folder = folder
        self._places, self._keys, self._publisher, self._wait_s = places, keys, publisher, wait_s
        self._pace = None if rate is None else TokenBucket(lambda: rate)
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._versions: dict[int, WeightVersion] = {}
        self._layouts: dict[str, WeightLayout] = {}
        self._complain = CalmLog(logger().warning, _CALM_S)
        self._silent_until = dict.fromkeys(range(len(places)), 0.0)
        """Those that did not answer come last for a moment."""
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

    def newest(self) -> int:
        """The newest version of the first source that has one; 0: none has. SilentError."""
        said: list[str] = []
        for at, place in self._in_order():
            try:
                if newest := newest_number(place) or max(version_numbers(place), default=0):
                    self.trouble = ""
                    return newest
            except OSError as error:
                self._silent_until[at] = time.monotonic() + _SILENT_S
                said.append(f"{place.url}: {_text(error)}")
        if said:
            raise SilentError(f"no source of weights answers: {'; '.join(said)}")
        return 0

    def version(self, number: int) -> WeightVersion:
        """A version, whose signature was looked at."""
        path = version_path(number)
        with self._locks[path]:
            if number not in self._versions:
                self._versions[number] = self._small(path, lambda content, where: self._good(content, number, where))
            return self._versions[number]

    def layout(self, sha256: str) -> WeightLayout:
        """A layout."""
        path = layout_path(sha256)
        with self._locks[path]:
            if sha256 not in self._layouts:
                self._layouts[sha256] = self._small(path, lambda content, where: read_layout(content, sha256, where))
            return self._layouts[sha256]

    def frame(self, number: int, frame: FrameFile) -> Path:
        """The file of a frame, in the folder."""
        relative = frame_path(number, frame.sha256)
        path = self.folder / relative
        with self._locks[relative]:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                self._fetch(relative, frame, path)
        return path

    def forget_before(self, number: int) -> None:
        """Remove what is kept of versions before this one."""
        self._versions = {known: version for known, version in self._versions.items() if known >= number}
        place = Folder(str(self.folder), self.folder)
        for name in place.names():
            file = StreamFile.of(name)
            if file is not None and 0 < file.number < number:
                place.remove(name)
                self._locks.pop(name, None)

    def _in_order(self) -> list[tuple[int, FilePlace]]:
        now = time.monotonic()
        return sorted(enumerate(self._places), key=lambda one: self._silent_until[one[0]] > now)

    def _good(self, content: bytes, number: int, where: str) -> WeightVersion:
        version = read_version(content, number, where)
        if self._keys is not None:
            version.require_signer(self._keys, self._publisher)
        return version

    def _small(self, path: str, read: Callable[[bytes, str], Any]) -> Any:
        """A file that is looked at in memory: as it is kept, else from the first source whose file is good."""
        with suppress(OSError):
            return read((self.folder / path).read_bytes(), str(self.folder))
        content, good = self._asked(path, lambda place: _whole_file(place, path, read))
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / path, content)
        return good

    def _asked(self, path: str, ask: Callable[[FilePlace], Any]) -> Any:
        """What the first source gives that has it. Sources that do not answer are asked again, for a while. DataError:
        none has it, or gives what it should."""
        until, pause_s = time.monotonic() + self._wait_s, pauses(*_PAUSE_S)
        while True:
            said, silent = list[str](), False
            for at, place in self._in_order():
                try:
                    found = ask(place)
                    self.trouble = ""
                    return found
                except DataError as error:
                    said.append(str(error))
                except FileNotFoundError:
                    said.append(f"{place.url} has no {path}")
                except OSError as error:
                    silent, self._silent_until[at] = True, time.monotonic() + _SILENT_S
                    said.append(f"{place.url}: {_text(error)}")
            self.trouble = "; ".join(said)
            if not silent or self.is_closed or time.monotonic() > until:
                raise DataError(self.trouble)
            time.sleep(next(pause_s))

    def _asked_range(self, path: str, start: int, count: int) -> bytes:
        got = bytearray()  # what a connection gave until it broke is not fetched twice
        self._asked(path, lambda place: _fill_range(place, path, start, count, got))
        return bytes(got)

    def _fetch(self, relative: str, frame: FrameFile, path: Path) -> None:
        """Get a frame in ranges, of which each may come from another source; if the bytes are wrong, from one source
        after the other."""
        ways: list[Callable[[int, int], bytes]] = [partial_of(self._asked_range, relative)]
        if len(self._places) > 1:
            ways += [partial_of(_range_of_one, place, relative) for place in self._places]
        part = path.with_name(f".{path.name}.partial")
        failures: list[str] = []
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            for way in ways:
                try:
                    found = fetch(way, frame.bytes, descriptor, self._pace, lambda: self.is_closed)
                except DataError as error:
                    failures.append(str(error))
                    if way is ways[0]:
                        break  # all sources were asked
                    continue
                self.fetched_bytes += frame.bytes
                if found == frame.sha256:
                    os.fsync(descriptor)
                    part.rename(path)
                    return
                failures.append(f"{relative} of {self.names} has other bytes than its version says")
                self._complain(failures[-1])
            raise DataError(failures[-1])
        finally:
            os.close(descriptor)
            part.unlink(missing_ok=True)


def _whole_file(place: FilePlace, path: str, read: Callable[[bytes, str], Any]) -> tuple[bytes, Any]:
    content = place.read(path, 0, MOST_FILE_BYTES + 1)  # in one round trip
    if len(content) > MOST_FILE_BYTES:
        raise DataError(f"{path} of {place.url} has more than {MOST_FILE_BYTES} bytes")
    return content, read(content, place.url)


def _fill_range(place: FilePlace, path: str, start: int, count: int, got: bytearray) -> None:
    place.read_on(path, start, count, got)
    if len(got) != count:
        raise DataError(f"{path} of {place.url} is shorter than its version says")


def _range_of_one(place: FilePlace, path: str, start: int, count: int) -> bytes:
    got = bytearray()
    try:
        _fill_range(place, path, start, count, got)
    except OSError as error:
        raise DataError(f"{place.url}: {_text(error)}") from None
    return bytes(got)


def _text(error: OSError) -> str:
    return " ".join(str(error).split()) or type(error).__name__
