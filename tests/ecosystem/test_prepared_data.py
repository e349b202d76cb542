"""Accelerate's loaders around a `SiteDataset`: those that would lose sequences are refused, others read all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader

import geocomm
from support.dealt_sets import DataSet
from support.harness import joined

pytest.importorskip("accelerate")
pytestmark = pytest.mark.slow


def read(url: str, dispatches: bool, batches: int) -> list[int]:
    """What the first of the ranks that iterate reads."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    os.environ |= {"NODE_RANK": os.environ["RANK"], "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatches))
    data = geocomm.SiteDataset(url, batch_size=4 if dispatches else None, sequence_length=DataSet.LENGTH)
    loader = accelerator.prepare(DataLoader(data, batch_size=None if dispatches else 4))
    if dispatches and dist.get_rank() > 0:
        return []  # it would wait for the first rank
    return [int(row[0]) for _, rows in zip(range(batches), loader, strict=False) for row in rows.reshape(4, -1)]


@pytest.mark.parametrize("dispatches", [True, False])
def test_loader_that_shares_batches_among_ranks_is_refused(tmp_path: Path, dispatches: bool) -> None:
    data = DataSet(tmp_path / "data", shards=4)
    with joined(["a", "a"]) as ranks:
        for outcome in ranks.outcomes(read, data.catalog.url, dispatches, 2)[: 1 if dispatches else 2]:
            message = outcome.require("InvalidArgumentError").message
            assert "Prepare the model and the optimizer alone" in message


def test_loader_of_one_rank_reads_each_sequence_once(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data", shards=4)
    with joined(["a"]) as ranks:
        for dispatches in (True, False):
            (numbers,) = ranks.run(read, data.catalog.url, dispatches, 24)
            assert sorted(numbers) == list(range(96))
