"""What a site's ranks read of their shards: ids in memory, whose hash was compared before.

A shard of a folder is mapped where it lies. One of a bucket is fetched ahead into a folder that all ranks of a node, or
of a site, share: each asks every store for one shard at a time, and a lock on the file says who fetches it. So a store
that hangs holds up nothing that lies in others. Imports no torch.
"""

from __future__ import annotations

import errno
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial as partial_of
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geocomm.core.bad_input import BadInput
from geocomm.core.environment import data_cache
from geocomm.core.file_systems import FULL
from geocomm.core.link_table import Links, own_links
from geocomm.core.message_log import logger
from geocomm.core.patience import Waiting, pauses
from geocomm.data.cache_folder import CacheFolder
from geocomm.data.catalog import Shard
from geocomm.data.places import Folder
from geocomm.data.shard_stores import ShardStores, TokenBucket, fetch
from geocomm.data.token_files import hash_of_range
from geocomm.metrics import sources

SHARDS_AT_LEAST = 16
"""Two deals: what a cache must hold."""
_OPEN_MAPS = 64
_POLL_SECONDS = 0.2
"""How soon is seen what another process has fetched."""
_FAR_SHARE = 0.5
"""Of the lines between sites, for shards: the rest is for what sites send each other in rounds."""
_LEAST_RATE = float(1 << 20)
_TAKEN_BACK_S = 120.0
"""A leader sees a newer version, and takes back what it denies, sooner than this."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 10.0
"""Seconds until a store is asked again that has failed."""


class ShardCache:
    """The shards of one data set, for one process."""

    def __init__(
        self,
        stores: ShardStores,
        *,
        folder: Path | None = None,
        row_bytes: int = 0,
        far_rate: float = math.inf,
        newest: Callable[[], ShardStores | None] = lambda: None,
        hear: Callable[[], None] = lambda: None,
    ) -> None:
        """folder: in place of GEOCOMM_DATA_CACHE. far_rate: bytes a second that come from afar at most, while nobody
        waits. newest: the stores by the newest version, whose leader takes back what it denies; None: nobody does. It
        may take seconds, and raise BadInput. hear: raises what ends a wait. Raises BadInput where the cache cannot hold
        two deals."""
        self.stores, self._newest, self._hear = stores, newest, hear
        self.row_bytes = row_bytes
        """What one call of `ids` stands for at all ranks of the site together. What is fetched ahead from afar comes at
        most at twice that rate; 0: as fast as it goes."""
        own, size = data_cache()
        self._folder = CacheFolder(folder or own, size)
        self._maps: OrderedDict[str, NDArray[np.unsignedinteger]] = OrderedDict()
        self._seen: dict[str, Path] = {}
        self._changed = threading.Condition()
        self._wanted: list[Shard] = []
        self._urgent: Shard | None = None
        self._asked: dict[str, str] = {}
        """By store: the hash of the shard that it is asked for."""
        self._failed: dict[str, Exception] = {}
        self._wrong: dict[tuple[str, str, int], list[str]] = {}
        """By place: what was wrong with it, each time."""
        self._pauses: dict[str, tuple[float, Iterator[float]]] = {}
        """Pauses of a store, or of a shard that is not in it: until when, and how long the next ones are."""
        self._denied: dict[str, float] = {}
        """By shard: since when the newest version is known to deny it."""
        self._troubles: dict[str, str] = {}
        """By shard: what was wrong at last."""
        self._pace, self._far_rate = TokenBucket(self._rate), far_rate
        self._began, self._eaten = 0.0, 0
        self.waited_seconds = 0.0
        self.fetched_bytes = 0
        self.fetched_dollars = 0.0
        self._closed = False
        self._thread: threading.Thread | None = None
        if needed := stores.largest_fetched(SHARDS_AT_LEAST):
            self._folder.require(needed)
        sources.register("data", self.counts)

    def counts(self) -> dict[str, float]:
        """The counts of this process, since the cache was made."""
        return {
            "waited_seconds": self.waited_seconds,
            "fetched_bytes": self.fetched_bytes,
            "fetched_dollars": self.fetched_dollars,
        }

    def read_from(self, stores: ShardStores, known: Callable[[], Iterable[Shard]]) -> None:
        """A newer version says where shards lie, and who may read them. known: shards of all versions that were read in
        this cache: of what this one denies, no copy stays."""
        self.stores = stores
        if foreign := {name for name in self._folder.names() if not stores.lets_read(name)}:
            for shard in known():
                if shard.sha256 in foreign:
                    self._folder.remove(shard.sha256)

    def want(self, shards: Sequence[Shard]) -> None:
        """Say what is read now and next, in this order: what is not there is fetched, and none of it is removed. It
        replaces what was said before."""
        with self._changed:
            self._wanted = list(shards)
            self._start()

    def ids(self, shard: Shard) -> NDArray[np.unsignedinteger]:
        """All ids of a shard, mapped; waits where they are not there yet.

        Raises BadInput where this site may not read it, no store has the right bytes, or its size is too small.
        """
        if not self._began:
            self._began = time.monotonic()
        self._eaten += self.row_bytes
        self.stores.copies(shard)  # a newer version may say that this site may not read it any more
        found = self._maps.get(shard.sha256)
        if found is None:
            found = self._mapped(shard, self._there(shard) or self._awaited(shard))
            while found is None:  # another process has made room meanwhile
                found = self._mapped(shard, self._awaited(shard))
            self._maps[shard.sha256] = found
            if len(self._maps) > _OPEN_MAPS:
                self._maps.popitem(last=False)
        self._maps.move_to_end(shard.sha256)
        return found

    def close(self) -> None:
        """Stop fetching."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if (thread := self._thread) is not None:
            thread.join()
        self._maps.clear()

    def _mapped(self, shard: Shard, place: tuple[Path, int]) -> NDArray[np.unsignedinteger] | None:
        """None: the file has gone."""
        path, offset = place
        try:
            whole = np.memmap(path, self.stores.dtype, mode="r", offset=offset, shape=(shard.tokens,))
        except FileNotFoundError:
            self._seen.pop(shard.sha256, None)
            return None
        except (OSError, ValueError) as error:
            raise BadInput(f"{path} cannot be mapped: {error}") from None
        self._folder.was_read(shard.sha256)
        return whole

    def _there(self, shard: Shard) -> tuple[Path, int] | None:
        """The file that has a shard's right bytes, and where in it. Raises BadInput where this site may not read it."""
        copies = self.stores.copies(shard)
        cached = self._folder.shard(shard.sha256, self.stores.size(shard))
        if cached is not None:
            return cached, 0
        seen = self._seen.get(shard.sha256) or self._folder.seen(shard.sha256)
        if seen is not None:
            for copy in copies:
                if self.stores.file(copy) == seen:
                    return seen, copy.offset
        return None

    def _awaited(self, shard: Shard) -> tuple[Path, int]:
        began, waiting = time.monotonic(), Waiting(logger().warning)
        with self._changed:
            self._urgent = shard
            self._pauses.pop(shard.sha256, None)
            self._start()
            try:
                while (found := self._there(shard)) is None:
                    if shard.sha256 in self._failed:
                        raise self._failed.pop(shard.sha256)
                    if self._closed:
                        raise BadInput("the cache of shards was closed while it was read")
                    self._hear()
                    waiting.tell(lambda: self._state_of(shard))
                    self._changed.wait(_POLL_SECONDS)
            finally:
                self._urgent = None
                self.waited_seconds += time.monotonic() - began
        return found

    def _state_of(self, shard: Shard) -> str:
        return f"{shard.path} of store {shard.store}: {self._troubles.get(shard.sha256, 'it is being fetched')}"

    def _start(self) -> None:
        if self._thread is None:
            # No daemon: the interpreter must not end below a thread that is inside of obstore.
            self._thread = threading.Thread(target=self._work, name="geocomm-shards")
            self._thread.start()
        self._changed.notify_all()

    def _stopped(self) -> bool:
        return self._closed or not threading.main_thread().is_alive()

    def _rate(self) -> float | None:
        """The cap, in bytes a second; None while nothing was read yet, or somebody waits."""
        if not self.row_bytes or not self._began or self._urgent is not None:
            return None
        seconds = time.monotonic() - self._began - self.waited_seconds
        return min(max(2 * self._eaten / max(seconds, 1.0), _LEAST_RATE), self._far_rate)

    def _work(self) -> None:
        threads: dict[str, threading.Thread] = {}
        while not self._stopped():
            with self._changed:
                found = self._next()
                if found is None and not self._asked and not any(self._missing()):
                    self._thread = None  # the next one begins where something is wanted
                    return
                if found is None:
                    self._changed.wait(_POLL_SECONDS)
                    continue
                store, shard = found
                self._asked[store] = shard.sha256
            threads[store] = threading.Thread(target=self._ask, args=found, name="geocomm-store")
            threads[store].start()
        for thread in threads.values():
            thread.join()

    def _ask(self, store: str, shard: Shard) -> None:
        try:
            if not self._load(shard):
                time.sleep(_POLL_SECONDS)  # another process does it
        except Exception as error:  # for whoever reads it
            self._failed[shard.sha256] = error
        with self._changed:
            del self._asked[store]
            self._changed.notify_all()

    def _next(self) -> tuple[str, Shard] | None:
        """What is fetched next, and from which store, of those that nobody asks now."""
        loading = set(self._asked.values())
        for shard in self._missing():
            if shard.sha256 in loading or self._paused(shard.sha256):
                continue
            stores = (one.store for one in self.stores.copies(shard) if self._usable(one.store, shard))
            store = next(stores, None)
            if store is not None and store not in self._asked:
                return store, shard
        return None

    def _usable(self, store: str, shard: Shard) -> bool:
        """Not a store that has failed, until its pause is over, and while another shard tries it."""
        doubted = store in self._pauses and self._asked.get(store, shard.sha256) != shard.sha256
        return not doubted and not self._paused(store)

    def _missing(self) -> Iterator[Shard]:
        """What is wanted and can still come."""
        for shard in [*([self._urgent] if self._urgent else []), *self._wanted]:
            try:
                if shard.sha256 not in self._failed and self._there(shard) is None:
                    yield shard
            except BadInput as error:
                self._failed[shard.sha256] = error

    def _load(self, shard: Shard) -> bool:
        """Get a shard from the nearest store that has it; False: another process is about it. Raises BadInput."""
        copies = self.stores.copies(shard)
        tries = 2 if len(copies) == 1 else 1
        left = [one for one in copies if len(self._wrong.get(one.place, ())) < tries]
        if not left:
            if self._is_taken_back(shard):
                self._pause(shard.sha256)
                return True
            said = "; ".join(self._wrong[one.place][-1] for one in copies)
            raise BadInput(f"shard {shard.sha256[:16]}: {said}. geocomm data check --deep says what is whole")
        for copy in left:
            if not self._usable(copy.store, shard):
                continue
            try:
                if not self._try(copy):
                    return False
            except FileNotFoundError as error:
                self._is_wrong(copy, str(error))
            except PermissionError as error:
                self._troubles[shard.sha256] = f"store {copy.store}: {error}"
            except InterruptedError:
                return True
            except OSError as error:
                self._troubles[shard.sha256] = f"store {copy.store}: {error}"
                self._pause(copy.store)
            else:
                self._pauses.pop(copy.store, None)
                if self._there(shard) is not None:
                    return True
        if any(len(self._wrong.get(one.place, ())) < tries for one in copies):
            self._pause(shard.sha256)
        return True

    def _is_taken_back(self, shard: Shard) -> bool:
        """Whether the leader is about to deal something else in its place."""
        try:
            newest = self._newest()
        except BadInput:
            return False
        if newest is None or not (why := newest.denied(shard)):
            return False
        self._troubles[shard.sha256] = f"{why}; the leader is to take it back"
        return time.monotonic() < self._denied.setdefault(shard.sha256, time.monotonic()) + _TAKEN_BACK_S

    def _try(self, copy: Shard) -> bool:
        """One copy; False: another process is about it. Where its bytes are wrong, that is counted. OSError."""
        path = self.stores.file(copy)
        if path is not None:
            place = Folder(str(path.parent), path.parent)
            if hash_of_range(place, path.name, copy.offset, self.stores.size(copy)) == copy.sha256:
                self._seen[copy.sha256] = path
                self._folder.saw(copy.sha256, path)
            else:
                self._is_wrong(copy, "other bytes than were added")
            return True
        try:
            with self._folder.claimed(copy.sha256) as partial:
                return partial is not None and self._fetched(copy, partial)
        except OSError as error:
            if error.errno is None:  # the store's: those of the system have a number
                raise
            is_limit = error.errno == errno.EFBIG
            if error.errno in FULL or (is_limit and copy.sha256 != self._urgent_sha256):
                self._troubles[copy.sha256] = f"the disk of the cache {self._folder.path} is full"
                return True  # there may be room later
            raise BadInput(f"the cache {self._folder.path} cannot be used: {error.strerror}") from None

    @property
    def _urgent_sha256(self) -> str:
        urgent = self._urgent
        return "" if urgent is None else urgent.sha256

    def _fetched(self, copy: Shard, partial: int) -> bool:
        size, near, kept = self.stores.size(copy), self.stores.is_near(copy), False
        # What is waited for goes before what is read later.
        nearest = self._wanted[:SHARDS_AT_LEAST] if copy.sha256 == self._urgent_sha256 else self._wanted
        wanted = {one.sha256 for one in nearest}
        try:
            if self._there(copy) is None:  # nobody was faster
                self._folder.make_room(size, wanted)
                read = partial_of(self.stores.read, copy)
                found = fetch(read, size, partial, None if near else self._pace, self._stopped)
                with self._changed:
                    self.fetched_bytes += size
                    self.fetched_dollars += size / 1e9 * self.stores.price(copy)
                if kept := found == copy.sha256:
                    self._folder.keep(copy.sha256, partial)
                else:
                    self._is_wrong(copy, "other bytes than were added")
        finally:
            if not kept:
                self._folder.drop(copy.sha256)
        return True

    def _is_wrong(self, copy: Shard, said: str) -> None:
        text = f"{copy.path} of store {copy.store}: {said}"
        self._wrong.setdefault(copy.place, []).append(text)
        self._troubles[copy.sha256] = text
        logger().warning("data: %s; it is not used", text)

    def _pause(self, key: str) -> None:
        _, further = self._pauses.get(key) or (0.0, pauses(_FIRST_PAUSE, _LONGEST_PAUSE))
        self._pauses[key] = time.monotonic() + next(further), further

    def _paused(self, key: str) -> bool:
        return key in self._pauses and time.monotonic() < self._pauses[key][0]


def far_rates(links: Links) -> dict[str, float]:
    """By site, in bytes a second: by its own line's limit, or else by the fastest link to it."""
    into = zip(*links.rate_bps, strict=True) if links.down_bps is None else ((rate,) for rate in links.down_bps)
    return {site: _FAR_SHARE * max(rates) / 8 for site, rates in zip(links.sites, into, strict=True)}


def own_far_rate(site: str) -> float:
    """The rate of a site by the table that GEOCOMM_LINKS names, in bytes a second; infinite where it names none, or not
    this site. Raises BadInput."""
    links = own_links()
    return math.inf if links is None else far_rates(links).get(site, math.inf)
