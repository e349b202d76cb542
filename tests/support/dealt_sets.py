"""Data sets whose tokens say which sequence they are of, and what sites of a run have read of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from geocomm.data.catalog import Catalog, Label, Rules, Shard, Store, Version
from geocomm.data.deal_records import shards_of
from geocomm.data.deal_sequences import argsort
from geocomm.elastic.journal.run_state import RunState

SITES = {"frankfurt": "eu", "virginia": "us", "tokyo": "asia"}
Read = Mapping[str, Mapping[int, int]]
"""By site, by position in its line: the number of the sequence that was read there last."""


class DataSet:
    """A catalog of shards whose tokens are the number of their sequence."""

    LENGTH = 16

    def __init__(
        self,
        folder: Path,
        shards: int,
        of_shard: int = 24,
        *,
        labelled: int = 0,
        sites: Mapping[str, str] = SITES,
        bucket: str = "",
    ) -> None:
        """of_shard: sequences. labelled: so many of the shards, the last ones, may be read in the EU alone. sites: by
        name, where they are. bucket: where the labelled ones lie, as store `eu`, under the names of their files."""
        folder.mkdir()
        self.catalog = Catalog(str(folder / "catalog"))
        self.ids = np.arange(shards * of_shard).reshape(shards, of_shard)
        found: list[Shard] = []
        for number, ids in enumerate(self.ids):
            content = np.repeat(ids, self.LENGTH).astype("<u4").tobytes()
            (folder / f"{number}.tokens").write_bytes(content)
            sha256 = hashlib.sha256(content).hexdigest()
            labels = ("personal",) if number >= shards - labelled else ()
            store = "eu" if labels and bucket else "disk"
            found.append(Shard(sha256, store, f"{number}.tokens", 0, of_shard * self.LENGTH, labels))
        stores = {"disk": Store(url=str(folder))} | ({"eu": Store(url=bucket)} if bucket else {})
        rules = Rules(stores=stores)
        if labelled:
            rules = Rules(sites=dict(sites), stores=stores, labels={"personal": Label(readers=("eu",))})
        version = Version(number=1, tokenizer="t", vocabulary=1 << 20, dtype="<u4", rules=rules, parts=())
        self.catalog.add(version, found)

    def counted(self, state: RunState, read: Read) -> Counter[int]:
        """How often each sequence counts, by the journal."""
        return Counter(read[name][position] for name in state.sites for position in range(state.position(name)))

    def assert_each_counts_once(self, state: RunState, read: Read) -> None:
        """Of each deal every sequence is read at one place, and is the one that a single process would read there."""
        assert state.genesis is not None
        run, starts = int(state.genesis.run[:16], 16), [0]
        assert len(self.catalog.read().parts) == len(starts)
        orders: dict[int, np.ndarray] = {}
        for index, deal in state.deals.items():
            ids = np.concatenate([self.ids[starts[part] + number] for part, number in shards_of(deal.shards)])
            orders[index] = ids[argsort(run, index, len(ids))]
        dealt = Counter(dict.fromkeys(orders, 0))
        places = Counter[tuple[int, int]]()
        for name, record in state.sites.items():
            at, position = state.line_begins(name), state.position(name)
            for piece in record.line:
                dealt[piece.deal] += piece.sequences
                for offset in range(piece.sequences):
                    places[piece.deal, piece.start + offset] += 1
                    if at + offset < position:
                        assert read[name][at + offset] == orders[piece.deal][piece.start + offset], (name, at + offset)
                at += piece.sequences
        for piece in state.rests:
            dealt[piece.deal] += piece.sequences
            places.update((piece.deal, piece.start + offset) for offset in range(piece.sequences))
        assert dealt == {index: len(order) for index, order in orders.items()}
        assert set(places.values()) == {1}
