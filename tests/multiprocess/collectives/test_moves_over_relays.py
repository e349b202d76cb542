"""Broadcasts and all-gathers where two of three sites meet over the third: the same data, passed on by its ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from support.harness import Ranks, links_over_b, ranks_fixture

LAYOUTS = {
    "1+1+1": ["a", "b", "c"],
    "2+2+2 shuffled": ["c", "a", "b", "b", "c", "a"],
    "2+1+2": ["a", "b", "c", "c", "a"],
}
ELEMENTS = 300_001
FEW = 100
ranks = ranks_fixture(LAYOUTS)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of links: little goes from a to c straight, but sooner than over b."""
    return links_over_b(tmp_path_factory.mktemp("links"), lambda src, dst: 0.02 if 1 in (src, dst) else 0.003)


def _of(rank: int, elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(rank))


def _relayed(table: str, move: str, elements: int) -> int:
    """Bytes that this rank has passed on, of one all-gather or of a broadcast by each rank."""
    import geocomm

    group = dist.new_group(pg_options=geocomm.Options(links=table))
    world = dist.get_world_size()
    if move == "all_gather":
        gathered = [torch.zeros(elements) for _ in range(world)]
        dist.all_gather(gathered, _of(dist.get_rank(), elements), group=group)
        assert all(torch.equal(part, _of(rank, elements)) for rank, part in enumerate(gathered))
    for root in range(world) if move == "broadcast" else ():
        tensor = _of(dist.get_rank(), elements)
        dist.broadcast(tensor, root, group=group)
        assert torch.equal(tensor, _of(root, elements))
    relayed: int = geocomm.stats()["groups"][-1]["relayed_bytes"]
    dist.destroy_process_group(group)
    return relayed


@pytest.mark.parametrize("move", ["broadcast", "all_gather"])
def test_site_between_passes_on_what_it_gets_itself(ranks: Ranks, table: str, move: str) -> None:
    relayed = ranks.run(_relayed, table, move, ELEMENTS)
    sites = ranks.sites
    of_b = sum(bytes_ for bytes_, site in zip(relayed, sites, strict=True) if site == "b")
    assert sum(relayed) == of_b
    equal_sites = len({sites.count(site) for site in sites}) == 1
    crossing = sum(site != "b" for site in sites) * ELEMENTS * 4
    # Every rank of a and c is a root once, and each one's shard goes to the other site.
    assert of_b == (crossing if move == "broadcast" or equal_sites else 0)


@pytest.mark.parametrize("move", ["broadcast", "all_gather"])
def test_few_bytes_go_straight(ranks: Ranks, table: str, move: str) -> None:
    assert set(ranks.run(_relayed, table, move, FEW)) == {0}
