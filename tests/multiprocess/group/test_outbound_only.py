"""A site that the others cannot dial (GEOCOMM_OUTBOUND_ONLY)."""

from __future__ import annotations

import torch
import torch.distributed as dist

from support.harness import Ranks, joined

OUTBOUND = {"GEOCOMM_OUTBOUND_ONLY": "1"}


def _collectives() -> tuple[float, list[float], float]:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.full((100_000,), float(rank))
    dist.all_reduce(total)
    gathered = [torch.zeros(3) for _ in range(size)]
    dist.all_gather(gathered, torch.full((3,), float(rank)))
    # Every pair, also those that exchange no stripes.
    around = torch.zeros(1)
    for step in range(1, size):
        sent = dist.isend(torch.tensor([float(rank)]), (rank + step) % size)
        dist.recv(around, (rank - step) % size)
        sent.wait()
        assert around.item() == (rank - step) % size
    return total[0].item(), [one[0].item() for one in gathered], around.item()


def test_collectives_with_a_site_that_only_dials() -> None:
    # In the middle of the ranks, so that its ranks are the first and the second of pairs.
    with joined(["a", "b", "b", "c"], environment_of={1: OUTBOUND, 2: OUTBOUND}) as ranks:
        outcomes = ranks.run(_collectives)
    assert [total for total, _, _ in outcomes] == [6.0] * 4
    assert [gathered for _, gathered, _ in outcomes] == [[0.0, 1.0, 2.0, 3.0]] * 4


def test_two_sites_that_only_dial_are_refused_on_every_rank() -> None:
    with Ranks(["a", "b", "c"], environment_of={1: OUTBOUND, 2: OUTBOUND}) as ranks:
        for outcome in ranks.try_init():
            message = outcome.require("InvalidArgumentError").message
            assert "sites b, c" in message
            assert "GEOCOMM_OUTBOUND_ONLY" in message
