"""Reduce-scatters, reduces and all-gathers by regions, and FSDP2 on top: half of the bytes cross, and it learns as over
Gloo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from geocomm.core.link_table import Links
from support.harness import Ranks, hash_of, links_of_two_regions, ranks_fixture

SHARD = 200_003
"""Elements of a rank: so many that links between regions bound what operations take, and two levels are faster."""
LAYOUTS = {"1+1+1+1": "abcd", "2+2+2+2 shuffled": "cabddbac", "2+1+1+2": "abcdda"}
REGIONS = {"a": "east", "b": "east", "c": "west", "d": "west"}
STEPS = 3

ranks = ranks_fixture({name: list(sites) for name, sites in LAYOUTS.items()})
four = ranks_fixture({"1+1+1+1": list("abcd")})


@pytest.fixture(scope="module")
def links_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return links_of_two_regions(tmp_path_factory.mktemp("links"))


@pytest.fixture(scope="module")
def plain_file(links_file: str) -> str:
    """The same links without regions."""
    path = Path(links_file).with_name("plain.json")
    table = Links.from_file(links_file).model_copy(update={"regions": None})
    path.write_text(json.dumps(table.to_dict()), encoding="utf-8")
    return str(path)


def _group(links: str, codec: str = "none") -> dist.ProcessGroup:
    import geocomm

    return dist.new_group(pg_options=geocomm.Options(codec=codec, links=links, min_compress_bytes=1024))


def _crossed(site: str) -> int:
    """Bytes that this rank, of `site`, has received from the other region so far. Called by all."""
    import geocomm

    dist.barrier()  # nobody awaits anything
    peers: list[dict[str, Any]] = geocomm.stats()["peers"]
    dist.barrier()  # nobody has begun the next operation
    there = [peer for peer in peers if REGIONS[peer["peer"].split("site ")[1][0]] != REGIONS[site]]
    return sum(peer["payload_received"] for peer in there)


def _given(rank: int, dtype: torch.dtype, ranks: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(rank)
    if dtype.is_floating_point:
        return torch.randn(ranks, SHARD, generator=made).to(dtype)
    return torch.randint(-(1 << 20), 1 << 20, (ranks, SHARD), generator=made, dtype=dtype)


def _sum(dtype: torch.dtype, ranks: int) -> torch.Tensor:
    return torch.stack([_given(rank, dtype, ranks).double() for rank in range(ranks)]).sum(0)


def _scattered(links: str, codec: str, dtype: torch.dtype, sites: str) -> tuple[float, str, int]:
    """How far this rank's shard is from the sum at most, its bits, and how many bytes crossed to here."""
    group = _group(links, codec)
    own, size = dist.get_rank(), dist.get_world_size()
    before = _crossed(sites[own])
    shard = torch.empty(SHARD, dtype=dtype)
    dist.reduce_scatter_tensor(shard, _given(own, dtype, size), group=group)
    crossed = _crossed(sites[own]) - before
    dist.destroy_process_group(group)
    return float((shard.double() - _sum(dtype, size)[own]).abs().max()), hash_of(shard), crossed


@pytest.mark.parametrize("codec", ["none", "lossless", "int8", "balanced"])
def test_a_reduce_scatter_sends_one_sum_to_each_region(
    ranks: Ranks, links_file: str, plain_file: str, codec: str
) -> None:
    sites = "".join(site or "" for site in ranks.sites)
    for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 0.2)):
        both = [ranks.run(_scattered, links, codec, dtype, sites) for links in (links_file, plain_file)]
        for found in both:
            assert max(error for error, *_ in found) < (most if codec in ("none", "lossless") else 5.0)
        by_region, plain = (sum(crossed for *_, crossed in found) for found in both)
        assert 0.45 < by_region / plain < 0.55


def _senders(links: str, sites: str) -> list[tuple[str, bool]]:
    """Of the last reduce-scatter here, as the log says: the sites that sent anything, and whether that were sums."""
    import geocomm

    _scattered(links, "none", torch.float32, sites)
    rows = [row for row in geocomm.op_log() if row["kind"] == "reduce_scatter"]
    return [(peer["site"], peer["sums"]) for peer in rows[-1]["peers"]]


def test_the_log_says_who_sends_sums_of_its_region(ranks: Ranks, links_file: str, plain_file: str) -> None:
    sites = "".join(site or "" for site in ranks.sites)
    for site, senders in zip(sites, ranks.run(_senders, links_file, sites), strict=True):
        assert {sums for _, sums in senders} == {True, False}
        assert all(sums is (REGIONS[other] != REGIONS[site]) for other, sums in senders)
    assert not any(sums for senders in ranks.run(_senders, plain_file, sites) for _, sums in senders)


def test_integers_are_what_one_level_makes_of_them(ranks: Ranks, links_file: str, plain_file: str) -> None:
    sites = "".join(site or "" for site in ranks.sites)
    by_region, plain = (ranks.run(_scattered, links, "none", torch.int64, sites) for links in (links_file, plain_file))
    assert [bits for _, bits, _ in by_region] == [bits for _, bits, _ in plain]
    assert all(error == 0.0 for error, *_ in by_region)


def _gathered(links: str, sites: str) -> tuple[bool, int]:
    """Whether this rank got what all had, and how many bytes crossed to here."""
    group = _group(links)
    own, size = dist.get_rank(), dist.get_world_size()
    before = _crossed(sites[own])
    room = torch.empty(size * SHARD)
    dist.all_gather_into_tensor(room, _given(own, torch.float32, 1)[0], group=group)
    crossed = _crossed(sites[own]) - before
    dist.destroy_process_group(group)
    return torch.equal(room, torch.cat([_given(rank, torch.float32, 1)[0] for rank in range(size)])), crossed


def test_an_all_gather_sends_one_copy_to_each_region_of_equal_sites(
    ranks: Ranks, links_file: str, plain_file: str
) -> None:
    sites = "".join(site or "" for site in ranks.sites)
    found = [ranks.run(_gathered, links, sites) for links in (links_file, plain_file)]
    assert all(is_right for one in found for is_right, _ in one)
    by_region, plain = (sum(crossed for _, crossed in one) for one in found)
    are_equal = len({sites.count(site) for site in sites}) == 1
    assert by_region / plain == pytest.approx(0.5 if are_equal else 1.0, abs=0.05)


def _reduced(links: str, root: int) -> float:
    group = _group(links)
    tensor = _given(dist.get_rank(), torch.float32, 1)
    dist.reduce(tensor, root, group=group)
    dist.destroy_process_group(group)
    exact = torch.stack([_given(rank, torch.float32, 1).double() for rank in range(dist.get_world_size())]).sum(0)
    return float((tensor.double() - exact).abs().max()) if dist.get_rank() == root else 0.0


def test_a_reduce_ends_at_its_root(ranks: Ranks, links_file: str) -> None:
    for root in range(ranks.size):
        assert max(ranks.run(_reduced, links_file, root)) < 1e-5


def _trained(links: str | None, codec: str, sites: str) -> tuple[list[float], str, int]:
    """Losses of this rank's batches, bits of the whole model, and how many bytes crossed to here. No links: Gloo."""
    group = dist.new_group(backend="gloo") if links is None else _group(links, codec)
    own = dist.get_rank()
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(40, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, 8))
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    losses: list[float] = []
    before = _crossed(sites[own])
    for step in range(STEPS):
        batch = torch.randn(16, 40, generator=torch.Generator().manual_seed(100 * step + own))
        loss = (net(batch) - batch[:, :8].sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    crossed = _crossed(sites[own]) - before
    whole = hash_of(*(parameter.full_tensor() for parameter in net.parameters()))  # type: ignore[attr-defined]
    return losses, whole, crossed  # torch takes meshes of equal ranks for one: the group stays


def test_fsdp2_over_two_regions_learns_as_over_gloo_with_half_of_the_bytes(
    four: Ranks, links_file: str, plain_file: str
) -> None:
    found = {links: four.run(_trained, links, "none", "abcd") for links in (links_file, plain_file, None)}
    for links in (links_file, plain_file):
        assert len({whole for _, whole, _ in found[links]}) == 1
        for (losses, *_), (reference, *_) in zip(found[links], found[None], strict=True):
            assert losses == pytest.approx(reference, rel=1e-5)
    by_region, plain = (sum(crossed for *_, crossed in found[links]) for links in (links_file, plain_file))
    assert 0.45 < by_region / plain < 0.6  # small layers go straight


def test_fsdp2_with_int8_keeps_all_ranks_alike(four: Ranks, links_file: str) -> None:
    lossy, exact = (four.run(_trained, links_file, codec, "abcd") for codec in ("int8", "none"))
    assert len({whole for _, whole, _ in lossy}) == 1
    assert lossy[0][1] != exact[0][1]
    for (losses, *_), (reference, *_) in zip(lossy, exact, strict=True):
        assert losses == pytest.approx(reference, rel=0.05)
