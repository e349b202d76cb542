"""Error feedback where two of three sites meet over the third: the bits are those of the straight way, on all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from support import planned_gradients as planned
from support.harness import Ranks, hash_of, links_over_b, ranks_fixture, relayed_bytes

ELEMENTS = 40_009
"""Few enough that all sites send to all others, with the table below and without it: the codec's work is the same."""
STEPS = 3

ranks = ranks_fixture({"1+1+1": ["a", "b", "c"], "2+1+2": ["a", "b", "c", "c", "a"]})


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of links. c is far away, and b, which is near a, passes on what those two send."""
    return links_over_b(tmp_path_factory.mktemp("links"), lambda src, dst: 0.08 if 2 in (src, dst) else 0.002)


@dataclass
class Reduced:
    """Of one rank: a hash of all results, one of what it still holds, and what it passed on for others."""

    results: str
    held: str
    relayed_bytes: int


def _group(table: str | None, **more: Any) -> dist.ProcessGroup:
    import geocomm

    return dist.new_group(pg_options=geocomm.Options(links=table, **more))


def _all_reduce_often(table: str | None, codec: str) -> Reduced:
    group = _group(table)
    backend: Any = group._get_backend(torch.device("cpu"))
    start, stop = backend.encoded_range(ELEMENTS, torch.float32)
    residual = torch.zeros(stop - start)
    results = []
    for step in range(STEPS):
        seed = 100 * step + dist.get_rank()
        tensor = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(seed))
        work = backend.all_reduce_compressed(tensor, codec, residual, True)
        work.wait()
        assert work.feedback()["committed"]
        results.append(tensor)
    outcome = Reduced(hash_of(*results), hash_of(residual), relayed_bytes())
    assert start == stop or residual.any()  # there was something to lose
    dist.destroy_process_group(group)
    return outcome


def _train_with_hook(table: str | None, codec: str) -> Reduced:
    import geocomm

    group = _group(table, min_compress_bytes=1024)
    model = DistributedDataParallel(planned.Planned(torch.float32), process_group=group, bucket_cap_mb=0.05)
    handle = geocomm.ddp_hook(model, geocomm.HookSettings(codec=codec, warmup_steps=0, exact_below=500))
    planned._rank.update(model=model, handle=handle, group=group)
    results = [gradient for step in planned.run_steps(0, STEPS) for gradient in step.values()]
    held = [
        values for _, pieces in sorted(handle.state_dict()["residual"].items()) for _, values in pieces if len(values)
    ]
    outcome = Reduced(hash_of(*results), hash_of(*held), relayed_bytes())
    dist.destroy_process_group(group)
    return outcome


def _assert_equal_but_for_the_way(ranks: Ranks, straight: list[Reduced], relayed: list[Reduced]) -> None:
    assert {one.results for one in straight + relayed} == {straight[0].results}
    assert [one.held for one in relayed] == [one.held for one in straight]
    assert not any(one.relayed_bytes for one in straight)
    for site, one in zip(ranks.sites, relayed, strict=True):
        assert (one.relayed_bytes > 0) == (site == "b")


@pytest.mark.parametrize("codec", ["int8", "int4", "balanced", "topk", "bit1"])
def test_all_reduce_with_residual_over_a_relay_gives_the_same_bits(ranks: Ranks, table: str, codec: str) -> None:
    ways = (ranks.run(_all_reduce_often, way, codec) for way in (None, table))
    _assert_equal_but_for_the_way(ranks, *ways)


@pytest.mark.parametrize("codec", ["int4", "tiny", "loco"])
def test_ddp_hook_over_a_relay_gives_the_same_bits(ranks: Ranks, table: str, codec: str) -> None:
    ways = (ranks.run(_train_with_hook, way, codec) for way in (None, table))
    _assert_equal_but_for_the_way(ranks, *ways)
