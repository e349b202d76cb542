"""All-reduces by regions: equal bits on all ranks, exact where one level is, and a lost site ends all."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from geocomm.core.link_table import Links
from support import planned_gradients as planned
from support.harness import Ranks, hash_of, links_of_two_regions, ranks_fixture, relayed_bytes

ELEMENTS = 400_009
"""So many that links between regions bound what all-reduces take, and two levels are faster."""
STEPS = 3
LIMIT_S = 50
"""Within which survivors have their error: less than the operation's own time-out and the link deadline."""

ranks = ranks_fixture({"1+1+1+1": list("abcd"), "2+1+1+2": list("abcdda")})


@pytest.fixture(scope="module")
def links_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return links_of_two_regions(tmp_path_factory.mktemp("links"))


def _group(links: str, codec: str, *, by_region: bool) -> dist.ProcessGroup:
    import geocomm

    if not by_region:
        table = Links.from_file(links).model_copy(update={"regions": None})
        path = Path(links).with_name(f"plain-{dist.get_rank()}.json")
        path.write_text(json.dumps(table.to_dict()), encoding="utf-8")
        links = str(path)
    return dist.new_group(pg_options=geocomm.Options(codec=codec, links=links, min_compress_bytes=1024))


def _of_rank(rank: int, dtype: torch.dtype) -> torch.Tensor:
    made = torch.Generator().manual_seed(rank)
    if dtype.is_floating_point:
        return torch.randn(ELEMENTS, generator=made).to(dtype)
    return torch.randint(-(1 << 20), 1 << 20, (ELEMENTS,), generator=made, dtype=dtype)


def _reduced(links: str, codec: str, by_region: bool, dtype: torch.dtype, op: Any = None) -> tuple[str, float, int]:
    """A hash of the result, how far it is from the sum at most, and what this rank passed on."""
    group = _group(links, codec, by_region=by_region)
    tensor = _of_rank(dist.get_rank(), dtype)
    dist.all_reduce(tensor, op or dist.ReduceOp.SUM, group=group)
    exact = sum(_of_rank(rank, dtype).double() for rank in range(dist.get_world_size()))
    result = hash_of(tensor), float((tensor.double() - exact).abs().max()), relayed_bytes()
    dist.destroy_process_group(group)
    return result


@pytest.mark.parametrize("codec", ["none", "lossless", "int8", "balanced"])
def test_all_ranks_end_with_equal_bits(ranks: Ranks, links_file: str, codec: str) -> None:
    for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 0.2)):
        found = ranks.run(_reduced, links_file, codec, True, dtype)
        assert len({bits for bits, _, _ in found}) == 1
        assert found[0][1] < (most if codec in ("none", "lossless") else 4.0)
        assert any(passed_on for *_, passed_on in found)
        plain = ranks.run(_reduced, links_file, codec, False, dtype)
        assert not any(passed_on for *_, passed_on in plain)


def test_integers_are_what_one_level_makes_of_them(ranks: Ranks, links_file: str) -> None:
    both = [ranks.run(_reduced, links_file, "none", by_region, torch.int64) for by_region in (True, False)]
    assert len({bits for found in both for bits, _, _ in found}) == 1
    assert both[0][0][1] == 0.0


def _mean_of_large_halves(links: str) -> bool:
    group = _group(links, "none", by_region=True)
    tensor = torch.full((4 * ELEMENTS,), 40_000.0, dtype=torch.float16)
    dist.all_reduce(tensor, dist.ReduceOp.AVG, group=group)
    assert relayed_bytes() or dist.get_rank() > 1
    dist.destroy_process_group(group)
    return bool((tensor == 40_000.0).all())


def test_a_regions_sum_of_float16_does_not_overflow_where_the_mean_does_not(ranks: Ranks, links_file: str) -> None:
    assert all(ranks.run(_mean_of_large_halves, links_file))


def _all_reduce_with_residual(links: str, codec: str) -> tuple[str, str, float]:
    """Hashes of the results and of what is held; how far sums of both are from those of what was given, at most."""
    group = _group(links, "none", by_region=True)
    backend: Any = group._get_backend(torch.device("cpu"))
    start, stop = backend.encoded_range(ELEMENTS, torch.float32)
    residual = torch.zeros(stop - start)
    results = []
    given = torch.zeros(ELEMENTS)
    for step in range(STEPS):
        tensors = [
            torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(100 * step + rank))
            for rank in range(dist.get_world_size())
        ]
        given += sum(tensors)
        tensor = tensors[dist.get_rank()]
        work = backend.all_reduce_compressed(tensor, codec, residual, False)
        work.wait()
        assert work.feedback()["committed"]
        results.append(tensor)
    held = torch.zeros(ELEMENTS)
    held[start:stop] = residual
    dist.all_reduce(held)  # of the default group, exact
    missing = given - sum(results) - held
    dist.destroy_process_group(group)
    return hash_of(*results), hash_of(residual), float(missing.abs().max())


@pytest.mark.parametrize("codec", ["int8", "int4", "balanced", "topk"])
def test_what_codecs_lose_at_both_levels_is_held_by_who_coded_it(ranks: Ranks, links_file: str, codec: str) -> None:
    found = ranks.run(_all_reduce_with_residual, links_file, codec)
    assert len({bits for bits, _, _ in found}) == 1
    assert len({held for _, held, _ in found}) > 1
    assert max(missing for *_, missing in found) < 1e-3


def _train_with_hook(links: str) -> str:
    import geocomm

    group = _group(links, "none", by_region=True)
    model = DistributedDataParallel(planned.Planned(torch.float32), process_group=group)
    handle = geocomm.ddp_hook(model, geocomm.HookSettings(codec="int4", warmup_steps=0, exact_below=500))
    planned._rank.update(model=model, handle=handle, group=group)
    results = [gradient for step in planned.run_steps(0, STEPS) for gradient in step.values()]
    dist.destroy_process_group(group)
    return hash_of(*results)


def test_a_hook_trains_alike_on_all_ranks(ranks: Ranks, links_file: str) -> None:
    assert len(set(ranks.run(_train_with_hook, links_file))) == 1


def _all_reduce() -> int:
    dist.all_reduce(torch.ones(ELEMENTS))
    return relayed_bytes()


@pytest.fixture(scope="module")
def lost(links_file: str) -> Iterator[dict[int, list[Any]]]:
    """What survivors say, by the site that died in the middle of an all-reduce. All die at once, which saves time."""
    groups = {
        site: Ranks(list("abcd"), environment={"GEOCOMM_LINKS": links_file}, time_limit=LIMIT_S) for site in (0, 3)
    }
    try:
        for group in groups.values():
            group.init(timeout=timedelta(seconds=120))
            assert any(group.run(_all_reduce))
        for site, group in groups.items():
            group.begin(_all_reduce, ranks=[rank for rank in range(4) if rank != site])
        time.sleep(0.2)
        for site, group in groups.items():
            group.signal(site, signal.SIGKILL)
        yield {site: group.finish(ranks=[rank for rank in range(4) if rank != site]) for site, group in groups.items()}
    finally:
        for group in groups.values():
            group.close()


@pytest.mark.parametrize("site", [0, 3])
def test_a_site_that_dies_is_named_by_all_others(lost: dict[int, list[Any]], site: int) -> None:
    for outcome in lost[site]:
        assert f"rank {site} (site {'abcd'[site]}" in outcome.require("PeerLostError").message
