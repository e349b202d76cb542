"""The bytes of one file or shard: ranges of 1 MiB, four in flight, at a pace."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

RANGE_BYTES = 1 << 20
IN_FLIGHT = 4
_BURST_BYTES = 4 * RANGE_BYTES


@dataclass
class TokenBucket:
    """A token bucket."""

    rate: Callable[[], float | None]
    """Bytes a second now; None: as fast as it goes."""
    _level: float = _BURST_BYTES
    _at: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait(self, count: int, stopped: Callable[[], bool]) -> None:
        """Until so many bytes may be asked for."""
        while (rate := self.rate()) is not None and not stopped():
            with self._lock:
                now = time.monotonic()
                self._level = min(self._level + rate * (now - self._at), _BURST_BYTES)
                self._at = now
                if self._level >= count:
                    self._level -= count
                    return
            time.sleep(0.02)


def fetch(
    read: Callable[[int, int], bytes],
    size: int,
    descriptor: int,
    pace: TokenBucket | None,
    stopped: Callable[[], bool],
) -> str:
    """Write `size` bytes into a file, and return the SHA-256 of what came. read(start, count): gives so many of them.
    OSError, also where it was stopped."""
    os.ftruncate(descriptor, 0)
    starts, lock, failures = iter(range(0, size, RANGE_BYTES)), threading.Lock(), list[Exception]()

    def pull() -> None:
        while not failures:
            with lock:
                start = next(starts, None)
            if start is None:
                return
            count = min(RANGE_BYTES, size - start)
            if pace is not None:
                pace.wait(count, stopped)
            try:
                if stopped():
                    raise InterruptedError("the run ends")
                _write(descriptor, read(start, count), start)
            except Exception as error:  # told by the thread that waits for this one
                failures.append(error)

    threads = [
        threading.Thread(target=pull, name="geocomm-fetch") for _ in range(min(IN_FLIGHT, -(-size // RANGE_BYTES)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return _hash(descriptor, size)


def _write(descriptor: int, content: bytes, start: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, start)
        view, start = view[written:], start + written


def _hash(descriptor: int, size: int) -> str:
    digest = hashlib.sha256()
    for start in range(0, size, RANGE_BYTES):
        digest.update(os.pread(descriptor, RANGE_BYTES, start))
    return digest.hexdigest()
