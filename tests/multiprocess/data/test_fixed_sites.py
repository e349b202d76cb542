"""Jobs of fixed sites that read one data set: every token id is accounted for over restarts with other sites."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import geocomm
from support.dealt_sets import DataSet
from support.harness import Ranks, joined

SHARDS, LABELLED = 40, 8


@pytest.fixture
def data(tmp_path: Path) -> DataSet:
    return DataSet(tmp_path / "data", SHARDS, labelled=LABELLED)


@dataclass
class Loop:
    """A training loop of one's own, between two batches."""

    data: geocomm.SiteDataset
    rows: Iterator[torch.Tensor]
    step: Callable[[torch.Tensor], None]


_loops: list[Loop] = []


def begin(url: str, batch_size: dict[str, int], state: str | None, wrapper: str, of_loader: bool) -> None:
    """Gradients cross between the sites. batch_size: by site. of_loader: torch's loader makes the batches."""
    size = batch_size[os.environ["GEOCOMM_SITE"]]
    data = geocomm.SiteDataset(url, batch_size=None if of_loader else size, sequence_length=DataSet.LENGTH)
    if state is not None:
        data.load_state_dict(json.loads(state))
    batches = DataLoader(data, batch_size=size) if of_loader else data
    _loops[:] = [Loop(data, iter(batches), _step_of(wrapper))]


def _step_of(wrapper: str) -> Callable[[torch.Tensor], None]:
    """A step of a small model."""
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Linear(DataSet.LENGTH, 4)
    if wrapper == "ZeRO":
        import deepspeed

        deepspeed.init_distributed(dist_backend="geocomm", verbose=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "steps_per_print": 1 << 30,
            "zero_optimization": {"stage": 2},
            "zero_allow_untested_optimizer": True,
        }
        engine: Any = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]

        def step_of_engine(rows: torch.Tensor) -> None:
            engine.backward(engine(rows).sum())
            engine.step()

        return step_of_engine
    model = fully_shard(model) if wrapper == "FSDP2" else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)

    def step(rows: torch.Tensor) -> None:
        model(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def train(batches: int) -> list[int]:
    """The numbers of the sequences that this rank has read."""
    loop, read = _loops[0], list[int]()
    for _ in range(batches):
        rows = next(loop.rows)
        read += [int(row[0]) for row in rows]
        assert all(len(set(row.tolist())) == 1 for row in rows)
        loop.step(rows.float())
    return read


def state_of() -> str:
    return json.dumps(_loops[0].data.state_dict())


def batch_tokens() -> int:
    return _loops[0].data.batch_tokens


def run(
    data: DataSet,
    sites: list[str],
    batches: int,
    state: str | None,
    batch_size: dict[str, int],
    wrapper: str = "DDP",
    *,
    of_loader: bool = False,
) -> tuple[dict[str, list[int]], list[str]]:
    """What each site has read in a job of its own processes, and the states of its ranks."""
    with joined(sites, environment={"DS_ACCELERATOR": "cpu"}) as ranks:
        ranks.run(begin, data.catalog.url, batch_size, state, wrapper, of_loader)
        found = ranks.run(train, batches)
        states = ranks.run(state_of)
        read: dict[str, list[int]] = {}
        for site, numbers in zip(sites, found, strict=True):
            read.setdefault(site, []).extend(numbers)
        for site, tokens in zip(sites, [] if of_loader else ranks.run(batch_tokens), strict=not of_loader):
            assert tokens == batch_size[site] * sites.count(site) * DataSet.LENGTH
    return read, states


def test_restarts_with_other_sites_miss_no_token_and_read_none_twice(data: DataSet) -> None:
    everything = set(range(SHARDS * 24))
    labelled = set(data.ids[SHARDS - LABELLED :].flatten().tolist())
    sizes = {"frankfurt": 4, "virginia": 3, "tokyo": 2}
    jobs = [
        (["frankfurt", "frankfurt", "virginia", "virginia"], 21),
        (["tokyo", "frankfurt", "virginia"], 17),
        (["virginia", "frankfurt", "frankfurt", "tokyo"], 13),
    ]
    times, state = Counter[int](), None
    for turn, (sites, batches) in enumerate(jobs):
        read, states = run(data, sites, batches, state, sizes)
        for site, numbers in read.items():
            assert len(numbers) == batches * sizes[site] * sites.count(site)
            assert site == "frankfurt" or labelled.isdisjoint(numbers)
            times.update(numbers)
        assert max(times.values()) == 1
        state = states[turn % len(states)]  # those of all ranks are of one moment
    # One process that may read all of it reads the rest of the pass, and nothing else.
    rest, (state,) = run(data, ["frankfurt"], (len(everything) - len(times)) // 4, state, sizes)
    times.update(rest["frankfurt"])
    assert max(times.values()) == 1
    last, _ = run(data, ["frankfurt"], 1, state, sizes)
    assert everything - times.keys() <= set(last["frankfurt"])


@pytest.mark.parametrize("wrapper", ["FSDP2", pytest.param("ZeRO", marks=pytest.mark.slow)])
def test_wrappers_of_the_model_do_not_matter(data: DataSet, wrapper: str) -> None:
    if wrapper == "ZeRO":
        pytest.importorskip("deepspeed")
    sizes = {"frankfurt": 4, "virginia": 3, "tokyo": 2}
    first, states = run(data, ["frankfurt", "virginia", "virginia"], 20, None, sizes, wrapper)
    second, _ = run(data, ["tokyo", "frankfurt", "frankfurt"], 20, states[1], sizes, wrapper)
    times = Counter(number for read in (first, second) for numbers in read.values() for number in numbers)
    assert max(times.values()) == 1
    assert times.total() == 20 * (4 + 3 + 3) + 20 * (2 + 4 + 4)


def test_job_that_goes_on_reads_the_batches_of_one_that_does_not_stop(data: DataSet) -> None:
    sites, sizes = ["frankfurt", "virginia", "virginia"], {"frankfurt": 3, "virginia": 2}
    whole, _ = run(data, sites, 40, None, sizes)
    first, states = run(data, sites, 23, None, sizes)
    second, _ = run(data, sites, 17, states[2], sizes)
    for site in sizes:
        assert sorted(first[site] + second[site]) == sorted(whole[site])


def test_torchs_loaders_read_each_sequence_once_over_restarts_with_other_sites(data: DataSet) -> None:
    sizes = {"frankfurt": 4, "virginia": 4, "tokyo": 4}
    first, states = run(data, ["frankfurt", "virginia", "virginia"], 20, None, sizes, of_loader=True)
    second, _ = run(data, ["tokyo", "frankfurt"], 20, states[1], sizes, of_loader=True)
    times = Counter(number for read in (first, second) for numbers in read.values() for number in numbers)
    assert max(times.values()) == 1
    assert times.total() == 20 * 4 * (3 + 2)


def test_what_does_not_fit_is_refused_at_all_ranks(data: DataSet) -> None:
    def refused(ranks: Ranks, *mentions: str) -> None:
        for outcome in ranks.outcomes(train, 1):
            message = outcome.require("InvalidArgumentError").message
            assert all(mention in message for mention in mentions), message

    url = data.catalog.url
    with joined(["frankfurt", "virginia"]) as ranks:
        ranks.run(begin, url, {"frankfurt": 800, "virginia": 760}, None, "DDP", False)
        ranks.run(train, 1)
        state = ranks.run(state_of)[0]
        ranks.run(begin, url, {"frankfurt": 1, "virginia": 1}, None, "DDP", False)
        ranks.run(load_at, state, 1)
        refused(ranks, "batches were read at site frankfurt: 0, at site virginia: 1", "must be equal")
        ranks.run(begin, url, {"frankfurt": 8, "virginia": 4}, None, "DDP", True)
        refused(ranks, "batch_size of the DataLoader at site frankfurt: 8, at site virginia: 4", "must be equal")
    with joined(["virginia", "virginia"]) as ranks:
        ranks.run(begin, url, {"virginia": 500}, None, "DDP", False)
        refused(ranks, "768 sequences of 16 tokens that site virginia may read, and a step takes 1000 there")


def load_at(state: str, rank: int) -> None:
    """At one rank alone, which is a mistake."""
    if torch.distributed.get_rank() == rank:
        _loops[0].data.load_state_dict(json.loads(state))
