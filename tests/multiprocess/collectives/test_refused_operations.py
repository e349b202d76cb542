"""What docs/reference/compatibility.md lists as refused ends in an error that says so, and the group lives on."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from support.harness import Ranks, ranks_fixture

ranks = ranks_fixture({"1+1": ["a", "b"]})


def _receive_from_anyone() -> None:
    dist.recv(torch.zeros(4))


def _monitor() -> None:
    dist.monitored_barrier(timeout=timedelta(seconds=5))


def _reduced() -> float:
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    return tensor[0].item()


def test_receive_from_any_source_across_sites_is_refused(ranks: Ranks) -> None:
    for outcome in ranks.outcomes(_receive_from_anyone):
        outcome.require("UnsupportedError")
    assert ranks.run(_reduced) == [2.0, 2.0]


def test_monitored_barrier_is_refused_by_older_torch(ranks: Ranks) -> None:
    """From 2.14 on torch takes every backend for CPU tensors, and gets a barrier."""
    for outcome in ranks.outcomes(_monitor):
        if torch.__version__ < "2.14":
            assert "GLOO" in outcome.require("ValueError").message
        else:
            assert outcome.failure is None
    assert ranks.run(_reduced) == [2.0, 2.0]
