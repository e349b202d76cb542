"""What fixed sites read of a data set: each sequence once, whatever the ranks, versions, and sites of a restart."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import geocomm
from geocomm.core.bad_input import BadInput
from geocomm.core.errors import InvalidArgumentError
from geocomm.data.catalog import Catalog, Label, Rules, Shard, Store, Version
from geocomm.data.deal_sequences import argsort
from geocomm.data.fixed_deals import ReadSoFar
from geocomm.data.shard_sequences import SetName, ShardSequences
from support.effort import effort

LENGTH = 4
GOLDEN_DEAL = [2, 5, 7, 3, 0, 6, 4, 1]
GOLDEN_SHARDS = [2, 3, 2, 5, 4, 7, 9, 1, 9, 5, 8, 8, 4, 7, 1, 3, 0, 6, 6, 0]


class DataSet:
    """Shards whose tokens say which sequence they are of: (shard, index, 0, 0)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.catalog = Catalog(str(folder / "catalog"))
        self.counts: list[int] = []
        self.rules = Rules(
            sites={"frankfurt": "eu", "virginia": "us", "ohio": "us"},
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


@effort(20)
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
    """A change would give equal runs of two versions of geocomm other batches."""
    assert argsort(7, 3, 8).tolist() == GOLDEN_DEAL
    data_set.add(*[2] * 10)
    assert [shard for shard, _ in seen(data_set.read(), 0, 20)] == GOLDEN_SHARDS


def test_passes_and_seeds_have_other_orders(data_set: DataSet) -> None:
    data_set.add(*[5] * 20)
    first, again = seen(data_set.read(), 0, 100), seen(data_set.read(), 100, 200)
    assert first != again
    assert first != seen(data_set.read(seed=2), 0, 100)
    assert first == seen(data_set.read(), 0, 100)


@effort(20)
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
    begun = seen(before, 0, position)
    data_set.add(*new)
    after = data_set.read()
    after.deal({"frankfurt": 1}, before.state(position))
    rest = seen(after, 0, sum(old) + sum(new) - position)
    assert sorted(begun + rest) == [(shard, index) for shard, count in enumerate(old + new) for index in range(count)]


def test_state_of_a_newer_or_another_version_is_refused(data_set: DataSet) -> None:
    data_set.add(5)
    first = data_set.read()
    data_set.add(5)
    second = data_set.read()
    second.deal({"frankfurt": 1}, {})
    with pytest.raises(BadInput, match="has read version 2"):
        first.deal({"frankfurt": 1}, second.state(0))
    state = second.state(0) | {"versions": {"1": "0" * 64}}
    with pytest.raises(BadInput, match="another one than the run has read"):
        second.deal({"frankfurt": 1}, state)


class Job:
    """The sites of a job in lockstep, each as its ranks see it; what they read is (shard, index)."""

    def __init__(self, data_set: DataSet, batches: dict[str, int], before: dict[str, Any] | None = None) -> None:
        self.sites: dict[str, ShardSequences] = {}
        self.read = {site: list[tuple[int, int]]() for site in batches}
        self.batches, self.consumed = batches, 0
        for site in batches:
            self.sites[site] = data_set.read(site=site)
            self.sites[site].deal(batches, before or {})

    def train(self, steps: int) -> None:
        for _ in range(steps):
            for site, data in self.sites.items():
                rows = data.micro_batch(data.position(self.consumed), 0, 0, 1, self.batches[site])
                self.read[site] += [(int(row[0]), int(row[1])) for row in rows]
            self.consumed += sum(self.batches.values())

    def state(self, site: str) -> dict[str, Any]:
        """As a checkpoint has it, through JSON."""
        return json.loads(json.dumps(self.sites[site].state(self.consumed)))


_SITES = st.dictionaries(st.sampled_from(["frankfurt", "virginia", "ohio"]), st.integers(1, 4), min_size=1)


@effort(25)
@given(
    common=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    eu=st.lists(st.integers(1, 9), max_size=10),
    jobs=st.lists(st.tuples(_SITES, st.integers(0, 12)), min_size=1, max_size=6),
)
def test_restarts_with_other_sites_miss_nothing_and_read_nothing_twice(
    tmp_path_factory: pytest.TempPathFactory,
    common: list[int],
    eu: list[int],
    jobs: list[tuple[dict[str, int], int]],
) -> None:
    data_set = DataSet(tmp_path_factory.mktemp("jobs"))
    data_set.add(*common, 4)
    if eu:
        data_set.add(*eu, labels=("eu",))
    labelled = range(len(common) + 1, len(data_set.counts))
    before, times = None, Counter[tuple[int, int]]()
    for batches, steps in [*jobs, ({"frankfurt": 1}, 0)]:
        job = Job(data_set, batches, before)
        job.train(steps)
        for site, read in job.read.items():
            assert site == "frankfurt" or not {shard for shard, _ in read}.intersection(labelled)
            times.update(read)
        before = job.state(next(iter(batches)))
    # One site that may read all reads what is dealt and left: then all sequences of a shard were read equally often,
    # and no shard three times more often than another one of its label. Twice happens where jobs of a few steps are
    # restarted with other sites, and each of these needs a shard to begin with.
    last = Job(data_set, {"frankfurt": 1}, before)
    left = ReadSoFar.of_plain(last.state("frankfurt"))
    last.train(sum(piece.sequences for line in (*left.lines.values(), left.rests) for piece in line))
    times.update(last.read["frankfurt"])
    of_shard = [{times[shard, index] for index in range(count)} for shard, count in enumerate(data_set.counts)]
    assert all(len(found) == 1 for found in of_shard)
    for some in (of_shard[: len(common) + 1], of_shard[len(common) + 1 :]):
        read_so_often = set[int]().union(*some)
        assert not read_so_often or max(read_so_often) - min(read_so_often) <= 2
    last.train(2 * sum(data_set.counts))
    times.update(last.read["frankfurt"])
    assert len(times) == sum(data_set.counts)


def test_job_that_stops_and_goes_on_reads_as_one_that_does_not(data_set: DataSet) -> None:
    data_set.add(*[7] * 50)
    data_set.add(*[7] * 10, labels=("eu",))
    batches = {"frankfurt": 2, "virginia": 3}
    whole = Job(data_set, batches)
    whole.train(120)
    first = Job(data_set, batches)
    first.train(31)
    for site in batches:  # whose states say the same
        second = Job(data_set, batches, first.state(site))
        second.train(89)
        assert {one: first.read[one] + second.read[one] for one in batches} == whole.read
    assert {shard for shard, _ in whole.read["virginia"]} <= set(range(50))


def test_site_that_may_not_read_a_batch_is_refused_at_all_ranks(data_set: DataSet) -> None:
    data_set.add(20, labels=("eu",))
    data_set.add(3)
    for site in ("frankfurt", "virginia"):
        data = data_set.read(site=site)
        with pytest.raises(BadInput, match="3 sequences of 4 tokens that site virginia may read, and a step takes 4"):
            data.deal({"frankfurt": 4, "virginia": 4}, {})
        with pytest.raises(BadInput, match="lack this site, tokyo"):
            data.deal({site: 1, "tokyo": 1}, {})


def test_sites_evaluate_the_same_sequences_that_all_of_them_may_read(data_set: DataSet) -> None:
    data_set.add(8, labels=("eu",))
    data_set.add(8)
    found: list[list[list[int]]] = []
    for site in ("frankfurt", "virginia"):
        data = data_set.read(site=site, held_out=0.25)
        data.deal({"frankfurt": 1, "virginia": 1}, {})
        found.append(data.rows(data.held_out(9).tolist())[:, :2].tolist())
    assert found == [[[1, 3], [1, 7]]] * 2


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
    rest = batches(newer, 13)
    assert Counter(begun + rest) == Counter(dict.fromkeys([*whole, (10, 0), (10, 1), (10, 2)], 1)) + Counter(rest[-1:])
    with pytest.raises(InvalidArgumentError, match="seed 9"):
        first.load_state_dict(state | {"seed": 9})


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


def test_loader_makes_batches_of_sequences_and_goes_on_where_it_stood(data_set: DataSet) -> None:
    """Those that the data set itself would make."""
    data_set.add(*[3] * 10)
    name = f"{data_set.catalog.url}@1"

    def items() -> geocomm.SiteDataset:
        return geocomm.SiteDataset(name, sequence_length=LENGTH)

    whole = batches(geocomm.SiteDataset(name, batch_size=2, sequence_length=LENGTH), 30)
    assert next(iter(items())).shape == (LENGTH,)
    first = items()
    begun = batches(DataLoader(first, batch_size=2), 4)
    second = items()
    second.load_state_dict(first.state_dict())
    assert begun + batches(DataLoader(second, batch_size=2), 26) == whole
    assert len(set(whole[:30])) == 30  # a pass
    with pytest.raises(InvalidArgumentError, match="batch_tokens is not known"):
        _ = first.batch_tokens


def test_torchdatas_loader_makes_batches_and_goes_on_where_its_state_was_taken(data_set: DataSet) -> None:
    module = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is missing: pip install torchdata")
    data_set.add(*[3] * 10)

    def loader() -> Any:
        data = geocomm.SiteDataset(f"{data_set.catalog.url}@1", sequence_length=LENGTH)
        return module.StatefulDataLoader(data, batch_size=2)

    whole = batches(loader(), 30)
    first, second = loader(), loader()
    begun = batches(first, 4)
    second.load_state_dict(first.state_dict())
    assert begun + batches(second, 26) == whole


@pytest.mark.parametrize("size", [1, 4])
def test_loader_that_would_make_batches_of_batches_says_what_to_write(size: int, data_set: DataSet) -> None:
    data_set.add(*[3] * 10)
    data = geocomm.SiteDataset(data_set.catalog.url, batch_size=2, sequence_length=LENGTH)
    with pytest.raises(
        InvalidArgumentError, match=rf"batches of {size} of these: write DataLoader\(data, batch_size=N"
    ):
        next(iter(DataLoader(data, batch_size=size)))
    assert next(iter(DataLoader(data, batch_size=None))).shape == (2, LENGTH)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda at: geocomm.SiteDataset([f"{at}@1"], batch_size=2, sequence_length=2), "and got a list"),  # type: ignore
        (lambda at: geocomm.SiteDataset(None, batch_size=2), "and got a NoneType"),  # type: ignore
        (lambda at: geocomm.SiteDataset(at, batch_size="2", sequence_length=2), "batch_size must be a whole number"),
        (lambda at: geocomm.SiteDataset(at, batch_size=2, sequence_length=2.5), "sequence_length must be a whole"),
        (lambda at: geocomm.SiteDataset(at, batch_size=2), "needs a sequence_length"),
    ],
)
def test_what_is_no_data_set_is_refused_with_what_one_is(
    given: Callable[[str], object], said: str, data_set: DataSet
) -> None:
    data_set.add(3)
    with pytest.raises(InvalidArgumentError, match=said):
        given(data_set.catalog.url)


def test_data_set_may_be_named_by_a_path(data_set: DataSet) -> None:
    data_set.add(3)
    assert batches(geocomm.SiteDataset(Path(data_set.catalog.url), batch_size=2, sequence_length=LENGTH), 1)


@pytest.mark.parametrize(
    "state",
    [
        {"a": 1},
        {},
        None,
        [1],
        {"batches": 1},
        {"batches": 1, "read": {"a": 1}, "seed": 0, "sequence_length": LENGTH, "held_out_fraction": 0.0},
        {"batches": "x", "read": {}, "seed": 0, "sequence_length": LENGTH, "held_out_fraction": 0.0},
    ],
)
def test_what_is_no_state_is_refused_with_what_one_is(state: Any, data_set: DataSet) -> None:
    data_set.add(3)
    data = geocomm.SiteDataset(data_set.catalog.url, batch_size=2, sequence_length=LENGTH)
    with pytest.raises(InvalidArgumentError, match=r"takes what state_dict\(\) of a SiteDataset has returned"):
        data.load_state_dict(state)
    assert batches(data, 1)  # as if nothing was said


@pytest.mark.parametrize("wrong", ["gone", "cut", "other"])
def test_shard_that_cannot_be_read_is_an_error_that_programs_can_catch(wrong: str, data_set: DataSet) -> None:
    data_set.add(3)
    data = geocomm.SiteDataset(data_set.catalog.url, batch_size=3, sequence_length=LENGTH)
    file = data_set.folder / "0.tokens"
    if wrong == "gone":
        file.unlink()
    else:
        content = file.read_bytes()
        file.write_bytes(content[:-2] if wrong == "cut" else bytes(len(content)))
    with pytest.raises(geocomm.DataError, match="geocomm data check") as caught:
        next(iter(data))
    assert isinstance(caught.value, geocomm.GeocommError)
    assert isinstance(caught.value, OSError)
    assert "\n" not in str(caught.value)


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
    for start in ("fork", "spawn"):
        with pytest.raises(InvalidArgumentError, match="num_workers must be 0"):
            next(iter(DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context=start)))


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
