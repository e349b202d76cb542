"""Data sets whose tokens say which sequence they are of."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from geocomm.data.catalog import Catalog, Rules, Shard, Store, Version

_OF_SHARD = 24
"""Sequences."""


class DataSet:
    """A catalog of shards whose tokens are the number of their sequence."""

    LENGTH = 16

    def __init__(self, folder: Path, shards: int) -> None:
        folder.mkdir()
        self.catalog = Catalog(str(folder / "catalog"))
        self.ids = np.arange(shards * _OF_SHARD).reshape(shards, _OF_SHARD)
        found: list[Shard] = []
        for number, ids in enumerate(self.ids):
            content = np.repeat(ids, self.LENGTH).astype("<u4").tobytes()
            (folder / f"{number}.tokens").write_bytes(content)
            sha256 = hashlib.sha256(content).hexdigest()
            found.append(Shard(sha256, "disk", f"{number}.tokens", 0, _OF_SHARD * self.LENGTH))
        rules = Rules(stores={"disk": Store(url=str(folder))})
        version = Version(number=1, tokenizer="t", vocabulary=1 << 20, dtype="<u4", rules=rules, parts=())
        self.catalog.add(version, found)
