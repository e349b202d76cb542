"""The order of deals, and the data set that reads it: each sequence once, whatever the number of ranks or versions."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import geocomm
from geocomm.core.bad_input import BadInput
from geocomm.core.errors import InvalidArgumentError
from geocomm.data.catalog import Catalog, Label, Rules, Shard, Store, Version
from geocomm.data.deal_sequences import argsort
from geocomm.data.shard_sequences import SetName, ShardSequences

LENGTH = 4
GOLDEN_DEAL = [2, 5, 7, 3, 0, 6, 4, 1]
GOLDEN_SHARDS = [8, 1, 8, 7, 6, 0, 5, 2, 5, 7, 4, 4, 6, 0, 2, 1, 3, 9, 9, 3]


class DataSet:
    """Shards whose tokens say which sequence they are of: (shard, index, 0, 0)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.catalog = Catalog(str(folder / "catalog"))
        self.counts: list[int] = []
        self.rules = Rules(
            sites={"frankfurt": "eu", "virginia": "us"},
            stores={"disk": Store(url=str(folder))},
            labels={"eu": Label(readers=("eu",))},
        )

    def add(self, *counts: int, labels: tuple[str, ...] = ()) -> None:
        """Another version with shards of so many sequences, and a rest of one token."""
        shards: list[Shard] = []
        for count in counts:
            number = len(self.counts)
            rows = np.zeros((count, LENGTH), "<u2")
            rows[:, 0], rows[:, 1] = number, np.arange(count)
            content = rows.tobytes() + b"\0\0"
            (self.folder / f"{number}.tokens").write_bytes(content)
            sha256 = hashlib.sha256(content).hexdigest()
            shards.append(Shard(sha256, "disk", f"{number}.tokens", 0, len(content) // 2, labels))
            self.counts.append(count)
        before = self.catalog.read() if self.catalog.numbers() else None
        version = Version(
            number=1 if before is None else before.number + 1, tokenizer="byte", vocabulary=257, dtype="<u2",
            rules=self.rules, parts=() if before is None else before.parts,
        )  # fmt: skip
        self.catalog.add(version, shards)

    def read(
        self, number: int | None = None, *, site: str = "frankfurt", held_out: float = 0.0, seed: int = 1
    ) -> ShardSequences:
        return ShardSequences(SetName(self.catalog.url, number), site, LENGTH, held_out, seed)


@pytest.fixture
def data_set(tmp_path: Path) -> DataSet:
    return DataSet(tmp_path)


def seen(data: ShardSequences, start: int, stop: int) -> list[tuple[int, int]]:
    """(shard, index) of the sequences at these positions."""
    rows = [data.rows([data.sequence_number(position)])[0] for position in range(start, stop)]
    return [(int(row[0]), int(row[1])) for row in rows]


@settings(deadline=None, max_examples=40)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(any),
    held_out=st.sampled_from([0.0, 0.25, 0.5]),
    seed=st.integers(0, 2**63 - 1),
)
def test_each_pass_has_every_sequence_once_and_none_that_is_held_out(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], held_out: float, seed: int
) -> None:
    data_set = DataSet(tmp_path_factory.mktemp("deals"))
    data_set.add(*counts)
    data = data_set.read(held_out=held_out, seed=seed)
    every = {0.0: 10**9, 0.25: 4, 0.5: 2}[held_out]
    all_of_them = [(shard, index) for shard, count in enumerate(counts) for index in range(count)]
    kept = [one for one in all_of_them if one[1] % every == every - 1]
    assert data.train_count == len(all_of_them) - len(kept)
    for of_pass in range(2 if data.train_count else 0):
        found = seen(data, of_pass * data.train_count, (of_pass + 1) * data.train_count)
        assert sorted(found) == sorted(set(all_of_them) - set(kept))
    assert data.held_out_count == len(kept)
    if kept:
        assert [(int(row[0]), int(row[1])) for row in data.rows(data.held_out(1000).tolist())] == kept
        assert len(data.held_out(1)) == 1


def test_order_is_that_of_the_first_version_of_geocomm_that_has_it(data_set: DataSet) -> None:
    """A change would have every run that goes on read some sequences again and others never."""
    assert argsort(7, 3, 8).tolist() == GOLDEN_DEAL
    data_set.add(*[2] * 10)
    assert [shard for shard, _ in seen(data_set.read(), 0, 20)] == GOLDEN_SHARDS


def test_passes_and_seeds_have_other_orders(data_set: DataSet) -> None:
    data_set.add(*[5] * 20)
    first, again = seen(data_set.read(), 0, 100), seen(data_set.read(), 100, 200)
    assert first != again
    assert first != seen(data_set.read(seed=2), 0, 100)
    assert first == seen(data_set.read(), 0, 100)


@settings(deadline=None, max_examples=40)
@given(
    old=st.lists(st.integers(1, 5), min_size=1, max_size=20),
    new=st.lists(st.integers(1, 5), min_size=1, max_size=20),
    at=st.floats(0, 1),
)
def test_newer_version_is_read_in_the_same_pass_and_nothing_twice(
    tmp_path_factory: pytest.TempPathFactory, old: list[int], new: list[int], at: float
) -> None:
    data_set = DataSet(tmp_path_factory.mktemp("newer"))
    data_set.add(*old)
    before = data_set.read()
    position = int(at * (sum(old) - 1))
    data_set.add(*new)
    after = data_set.read().renewed(before.readings, position)
    whole = seen(after, 0, sum(old) + sum(new))
    assert whole[:position] == seen(before, 0, position)
    assert sorted(whole) == [(shard, index) for shard, count in enumerate(old + new) for index in range(count)]
    again = data_set.read().renewed(after.readings, position + 3)  # no newer one since then
    assert seen(again, 0, len(whole)) == whole


def test_state_of_a_newer_or_another_version_is_refused(data_set: DataSet, tmp_path: Path) -> None:
    data_set.add(5)
    first = data_set.read()
    data_set.add(5)
    second = data_set.read()
    with pytest.raises(BadInput, match="has read version 2"):
        first.renewed(second.readings, 0)
    other = DataSet(tmp_path)
    other.counts = [5]
    reading = first.readings[0]._replace(sha256="0" * 64)
    with pytest.raises(BadInput, match="not the one"):
        second.renewed([reading], 0)


def test_site_reads_what_its_labels_let_it_read_alone(data_set: DataSet) -> None:
    data_set.add(3)
    data_set.add(4, labels=("eu",))
    assert data_set.read().train_count == 7
    virginia = data_set.read(site="virginia")
    assert {shard for shard, _ in seen(virginia, 0, 30)} == {0}
    with pytest.raises(BadInput, match="lack this site"):
        data_set.read(site="local")
    assert data_set.read(1, site="local").train_count == 3


def batches(data: Iterable[torch.Tensor], count: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for _, rows in zip(range(count), data, strict=False):
        assert rows.dtype == torch.int64
        assert rows.shape == (2, LENGTH)
        found += [(int(row[0]), int(row[1])) for row in rows]
    return found


@pytest.fixture(autouse=True)
def _site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEOCOMM_SITE", "frankfurt")


def test_data_set_goes_on_where_its_state_was_taken(data_set: DataSet) -> None:
    data_set.add(*[3] * 10)
    name = f"{data_set.catalog.url}@1"
    whole = batches(geocomm.SiteDataset(name, batch_size=2, sequence_length=LENGTH), 30)
    assert Counter(whole) == Counter(dict.fromkeys(whole, 2))
    first = geocomm.SiteDataset(name, batch_size=2, sequence_length=LENGTH)
    assert first.batch_tokens == 2 * LENGTH
    begun = batches(first, 4)
    state = first.state_dict()
    second = geocomm.SiteDataset(name, batch_size=2, sequence_length=LENGTH)
    second.load_state_dict(state)
    assert begun + batches(second, 26) == whole
    other = geocomm.SiteDataset(name, batch_size=2, sequence_length=LENGTH + 1)
    with pytest.raises(InvalidArgumentError, match="sequence_length 4, and this one 5"):
        other.load_state_dict(state)
    data_set.add(3)
    newer = geocomm.SiteDataset(data_set.catalog.url, batch_size=2, sequence_length=LENGTH)
    newer.load_state_dict(state)
    assert [one[0] for one in newer.state_dict()["readings"]] == [1, 2]
    with pytest.raises(InvalidArgumentError, match="has read version 2"):
        first.load_state_dict(newer.state_dict())


def test_torchdatas_loader_goes_on_where_its_state_was_taken(data_set: DataSet) -> None:
    module = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is missing: pip install torchdata")
    data_set.add(*[3] * 10)

    def loader(sequence_length: int = LENGTH) -> Any:
        data = geocomm.SiteDataset(f"{data_set.catalog.url}@1", batch_size=2, sequence_length=sequence_length)
        return module.StatefulDataLoader(data, batch_size=None)

    whole = batches(loader(), 30)
    first, second = loader(), loader()
    begun = batches(first, 4)
    second.load_state_dict(first.state_dict())
    assert begun + batches(second, 26) == whole
    other = loader(LENGTH + 1)
    other.load_state_dict(first.state_dict())
    with pytest.raises(InvalidArgumentError, match="sequence_length 4, and this one 5"):
        next(iter(other))


def test_data_set_that_cannot_be_read_is_refused(data_set: DataSet) -> None:
    data_set.add(3)
    name = data_set.catalog.url
    for wrong, said in ((f"{name}@2", "no version 2"), (f"{name}@x", "no number"), (f"{name}x", "no version of")):
        with pytest.raises(InvalidArgumentError, match=said):
            geocomm.SiteDataset(wrong, batch_size=1, sequence_length=LENGTH)
    with pytest.raises(InvalidArgumentError, match="has 3 sequences"):
        geocomm.SiteDataset(name, batch_size=4, sequence_length=LENGTH)
    with pytest.raises(InvalidArgumentError, match="batch_size 0"):
        geocomm.SiteDataset(name, batch_size=0, sequence_length=LENGTH)
    data = geocomm.SiteDataset(name, batch_size=1, sequence_length=LENGTH)
    assert next(iter(DataLoader(data, batch_size=None))).shape == (1, LENGTH)
    with pytest.raises(InvalidArgumentError, match="num_workers must be 0"):
        next(iter(DataLoader(data, batch_size=None, num_workers=1)))


def test_file_that_has_shrunk_since_is_said(data_set: DataSet) -> None:
    data_set.add(3)
    (data_set.folder / "0.tokens").write_bytes(b"\0\0")
    with pytest.raises(BadInput, match="geocomm data check"):
        seen(data_set.read(), 0, 3)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_any_number_of_ranks_reads_the_same_batches(data_set: DataSet, ranks: int) -> None:
    data_set.add(*[3] * 20)
    whole = data_set.read().micro_batch(0, 0, 0, 1, 40)
    size = 8 // ranks
    steps = [
        data_set.read().micro_batch(consumed, 0, rank, ranks, size)
        for consumed in range(0, 40, 8)
        for rank in range(ranks)
    ]
    assert np.array_equal(np.concatenate(steps), whole)
