"""A catalog as ranks read it: its files are kept in the cache, so that they start also while it cannot be read.

CACHE/catalogs/HASH/    HASH: of the catalog's URL. What was read of it, under the names that it has there.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from typing_extensions import override

from geocomm.core.bad_input import BadInput
from geocomm.core.environment import data_cache
from geocomm.core.file_systems import write_whole
from geocomm.core.message_log import logger
from geocomm.core.patience import Waiting, pauses
from geocomm.data.catalog import Catalog, Shard, shard_of

_LOOK_S = 0.2


@dataclass(frozen=True)
class KeptCatalog(Catalog):
    """What has a known hash is taken from the cache, or awaited. Of the rest the catalog itself is asked first."""

    wait_s: float = 300.0
    """Until an error, where files of a known hash cannot be read. Files that are missing, or that no key opens, are not
    awaited."""

    @override
    def numbers(self) -> list[int]:
        try:
            return super().numbers()
        except BadInput as error:
            if not (kept := Catalog(str(self._kept)).numbers()):
                raise
            logger().warning("data: %s; the newest version that was read before is %d", error, kept[-1])
            return kept

    @override
    def content(self, path: str, sha256: str | None = None) -> bytes:
        kept: bytes | None = None
        with suppress(OSError):
            kept = (self._kept / path).read_bytes()
        if kept is not None and sha256 == _sha256(kept):
            return kept
        try:
            found = super().content(path) if sha256 is None else self._awaited(path)
        except (FileNotFoundError, PermissionError):
            raise
        except OSError:
            if kept is None or sha256 is not None:
                raise
            return kept
        if found != kept and sha256 in (None, _sha256(found)):
            with suppress(OSError):
                (self._kept / path).parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._kept / path, found)
        return found

    def kept_shards(self) -> Iterator[Shard]:
        """The shards of all versions that were read here, as far as they are kept."""
        for part in self._kept.glob("parts/*"):
            with suppress(OSError, ValidationError):  # what is damaged is read anew where it is wanted
                yield from [shard_of(line) for line in part.read_bytes().splitlines()]

    @property
    def _kept(self) -> Path:
        return data_cache()[0] / "catalogs" / _sha256(self.url.encode())[:16]

    def _awaited(self, path: str) -> bytes:
        waiting, until = Waiting(logger().warning), time.monotonic() + self.wait_s
        pause_s, said = pauses(1.0, 10.0), "it has not answered"

        def what() -> str:
            return f"the catalog {self.url}, to read {path}: {said}"

        with ThreadPoolExecutor(1, "geocomm-catalog") as pool:
            while True:
                tried = pool.submit(self.place.read, path)
                while not wait([tried], _LOOK_S).done:
                    waiting.tell(what)
                try:
                    return tried.result()
                except (FileNotFoundError, PermissionError):
                    raise
                except OSError as error:
                    said = str(error)
                    if time.monotonic() > until:
                        raise OSError(f"{said}, since {self.wait_s:.0f} s") from None
                waiting.tell(what)
                time.sleep(next(pause_s))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
