"""The stores of a data set, as one site may read them: the only way to the bytes of shards, which come in
ranges of 1 MiB, four in flight, at a pace."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import nlargest
from pathlib import Path
from typing import TYPE_CHECKING

from geocomm.core.bad_input import BadInput
from geocomm.data.places import FilePlace, Folder, is_folder, open_place

if TYPE_CHECKING:
    from geocomm.data.catalog import Shard, Store, Version


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
    most: int = RANGE_BYTES,
) -> str:
    """Write `size` bytes into a file, and return the SHA-256 of what came. read(start, count): gives so many of them,
    `most` at the most. OSError, also where it was stopped."""
    os.ftruncate(descriptor, 0)
    starts, lock, failures = iter(range(0, size, most)), threading.Lock(), list[Exception]()

    def pull() -> None:
        while not failures:
            with lock:
                start = next(starts, None)
            if start is None:
                return
            count = min(most, size - start)
            if pace is not None:
                pace.wait(count, stopped)
            try:
                if stopped():
                    raise InterruptedError("the run ends")
                _write(descriptor, read(start, count), start)
            except Exception as error:  # told by the thread that waits for this one
                failures.append(error)

    threads = [threading.Thread(target=pull, name="geocomm-fetch") for _ in range(min(IN_FLIGHT, -(-size // most)))]
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


class ShardStores:
    """What lies where, for one site."""

    def __init__(self, version: Version, shards: Iterable[Shard], site: str) -> None:
        """shards: all of the version, since a shard may lie in several stores. site: the own one."""
        self.dtype, self.width = version.dtype, version.width
        self._rules, self._site, self._number = version.rules, site, version.number
        self._copies: dict[str, list[Shard]] = {}
        for shard in shards:
            self._copies.setdefault(shard.sha256, []).append(shard)

    def copies(self, shard: Shard) -> list[Shard]:
        """Where the bytes of a shard lie, nearest first. Raises BadInput where this site may not read it, by the labels
        that they have in this version: the shard may be of an earlier one."""
        known = self._copies.get(shard.sha256, [shard])
        found = [one for one in known if self._may_read(one)]
        if not found:
            self._require_reader(known[0])
        return sorted(found, key=self._distance)

    def lets_read(self, sha256: str) -> bool:
        """Whether this version has such a shard, and lets this site read it."""
        return any(self._may_read(one) for one in self._copies.get(sha256, ()))

    def denied(self, shard: Shard) -> str:
        """Why this site is not to read the shard, by this version; empty: it may."""
        if shard.sha256 not in self._copies:
            return f"version {self._number} of the data is without {shard.path} of store {shard.store}"
        if not self.lets_read(shard.sha256):
            return f"version {self._number} of the data does not let site {self._site} read {shard.path}"
        return ""

    def read(self, shard: Shard, start: int, count: int) -> bytes:
        """So many bytes of a shard. Raises BadInput where this site may not read it; OSError."""
        place = self._place(shard)
        content = place.read(shard.path, shard.offset + start, count)
        if len(content) != count:
            raise OSError(f"{shard.path} of {place.url} is shorter than what was added")
        return content

    def file(self, shard: Shard) -> Path | None:
        """The file that a shard is a range of; None: it lies in a bucket. Raises BadInput as `read` does."""
        place = self._place(shard)
        return place.path / shard.path if isinstance(place, Folder) else None

    def size(self, shard: Shard) -> int:
        """Bytes of a shard."""
        return shard.tokens * self.width

    def is_near(self, shard: Shard) -> bool:
        """Whether it is fetched without a cap."""
        return self._site in self._store(shard).near

    def price(self, shard: Shard) -> float:
        """Dollars per GB for this site."""
        return 0.0 if self.is_near(shard) else self._store(shard).price

    def largest_fetched(self, number: int) -> int:
        """Bytes of so many shards that this site may have to fetch, the largest ones."""
        fetched = {name for name, table in self._rules.stores.items() if not is_folder(table.url)}
        firsts = (copies[0] for copies in self._copies.values())
        sizes = (self.size(one) for one in firsts if one.store in fetched and self._may_read(one))
        return sum(nlargest(number, sizes))

    def _place(self, shard: Shard) -> FilePlace:
        self._require_reader(shard)
        return open_place(self._store(shard).url, shard.store)

    def _store(self, shard: Shard) -> Store:
        return self._rules.require_store(shard.store)

    def _require_reader(self, shard: Shard) -> None:
        if not self._may_read(shard):
            gone = [label for label in shard.labels if label not in self._rules.labels]
            why = f"there is no [labels.{gone[0]}] any more" if gone else f"its labels: {', '.join(shard.labels)}"
            raise BadInput(f"site {self._site} may not read {shard.path} of store {shard.store}: {why}")

    def _may_read(self, shard: Shard) -> bool:
        return self._rules.may_read(self._site, shard.labels)

    def _distance(self, shard: Shard) -> tuple[bool, bool, float]:
        store = self._store(shard)
        own_region = self._rules.sites.get(self._site, self._site)
        return self._site not in store.near, store.region != own_region, store.price
