"""Every collective over several shapes of sites gives what Gloo gives."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from support import collective_cases
from support.harness import Ranks, gloo_group, ranks_fixture

LAYOUTS = {
    "1+1": ["a", "b"],
    "2+1": ["a", "a", "b"],
    "2+2": pytest.param(["a", "a", "b", "b"], marks=pytest.mark.slow),
    "1+1+1": ["a", "b", "c"],
    "3+1+2 shuffled": ["b", "a", "c", "a", "a", "c"],
}
ranks = ranks_fixture(LAYOUTS)


def _compare(name: str) -> list[str]:
    return collective_cases.compare(name, gloo_group())


@pytest.mark.parametrize("name", collective_cases.NAMES)
def test_collective_over_sites_equals_gloo(ranks: Ranks, name: str) -> None:
    assert ranks.run(_compare, name) == [[]] * ranks.size


def _empty_tensors() -> list[int]:
    tensor = torch.zeros(0)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    output = torch.zeros(0)
    collective_cases.gather_single(output, tensor)
    collective_cases.reduce_scatter_single(tensor, output)
    dist.barrier()
    return [tensor.numel(), output.numel()]


def test_collective_of_empty_tensors_completes(ranks: Ranks) -> None:
    assert ranks.run(_empty_tensors) == [[0, 0]] * ranks.size


def _late_futures() -> int:
    return sum(_is_late(dist.all_reduce(torch.ones(100), async_op=True)) for _ in range(300))


def _is_late(work: dist.Work) -> bool:
    work.wait()
    return not work.get_future().done()


def test_future_is_done_when_wait_returns(ranks: Ranks) -> None:
    """Callers add what comes next after wait() and expect it to run there and then."""
    assert ranks.run(_late_futures) == [0] * ranks.size


def _objects() -> list[object]:
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * 100 * rank})
    sent: list[object] = [{"from": 0}, [1, 2]] if rank == 0 else [None, None]
    dist.broadcast_object_list(sent, src=0)
    last: list[object] | None = [None] * size if rank == size - 1 else None
    dist.gather_object(("rank", rank), last, dst=size - 1)
    part: list[object] = [None]
    dist.scatter_object_list(part, [f"for {r}" for r in range(size)] if rank == 0 else None, src=0)
    return [gathered, sent, last, part]


def test_object_collectives_over_sites_move_objects(ranks: Ranks) -> None:
    size = ranks.size
    everyone = [{"rank": r, "text": "x" * 100 * r} for r in range(size)]
    for rank, (gathered, sent, last, part) in enumerate(ranks.run(_objects)):
        assert gathered == everyone
        assert sent == [{"from": 0}, [1, 2]]
        assert last == ([("rank", r) for r in range(size)] if rank == size - 1 else None)
        assert part == [f"for {rank}"]


def _strided() -> list[str]:
    """Views with gaps and transposed ones give what their contiguous copies give."""
    wrong = []
    rank, size = dist.get_rank(), dist.get_world_size()
    base = torch.arange(60, dtype=torch.float32).view(6, 10) * (rank + 1)
    sums = base.clone()
    dist.all_reduce(sums)
    for name, view in {"transposed": base.clone().t(), "every second": base.repeat(1, 2)[:, ::2]}.items():
        expected = sums.t() if name == "transposed" else base.repeat(1, 2)[:, ::2].mul(1 / (rank + 1))
        if name != "transposed":
            expected = expected * sum(range(1, size + 1))
        dist.all_reduce(view)
        if not torch.allclose(view, expected):
            wrong.append(f"all_reduce {name}")
    sent = torch.arange(20.0).view(4, 5).t() if rank == 0 else torch.zeros(4, 5).t()
    dist.broadcast(sent, 0)
    if not torch.equal(sent, torch.arange(20.0).view(4, 5).t()):
        wrong.append("broadcast transposed")
    return wrong


def test_collective_of_strided_views_writes_the_view(ranks: Ranks) -> None:
    assert ranks.run(_strided) == [[]] * ranks.size


def _barrier_order(folder: str) -> bool:
    """No rank leaves the barrier before the last one came."""
    import time
    from pathlib import Path

    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == size - 1:
        time.sleep(0.3)
    (Path(folder) / str(rank)).touch()
    dist.barrier()
    return len(list(Path(folder).iterdir())) == size


def test_barrier_waits_for_every_rank(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert ranks.run(_barrier_order, str(tmp_path_factory.mktemp("barrier"))) == [True] * ranks.size


def _premul_sum() -> bool:
    tensor = torch.full((50,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    return bool(torch.equal(tensor, torch.full((50,), 0.5 * sum(range(1, dist.get_world_size() + 1)))))


def test_premul_sum_over_sites_scales_first(ranks: Ranks) -> None:
    assert all(ranks.run(_premul_sum))


def _functional() -> list[bool]:
    import torch.distributed._functional_collectives as functional

    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.full((4, 3), float(rank))
    gathered = functional.all_gather_tensor(mine, 0, dist.group.WORLD)
    reduced = functional.all_reduce(mine, "sum", dist.group.WORLD)
    scattered = functional.reduce_scatter_tensor(torch.ones(2 * size), "sum", 0, dist.group.WORLD)
    return [
        torch.equal(gathered.view(size, 4, 3)[:, 0, 0], torch.arange(float(size))),
        torch.equal(reduced, torch.full((4, 3), float(sum(range(size))))),
        torch.equal(scattered, torch.full((2,), float(size))),
    ]


def test_functional_collectives_over_sites_give_the_sums(ranks: Ranks) -> None:
    assert ranks.run(_functional) == [[True] * 3] * ranks.size


NO_COUNTERS = {"ratio", "groups", "peers", "memory", "gradients", "local_steps", "data"}  # of stats()


def _counted() -> dict[str, float]:
    import geocomm

    before = geocomm.stats()
    for _ in range(3):
        dist.all_reduce(torch.ones(100_000))
    after = geocomm.stats()
    return {name: after[name] - before[name] for name in before if name not in NO_COUNTERS}


def test_stats_after_reductions_count_bytes_on_both_sides(ranks: Ranks) -> None:
    counted = ranks.run(_counted)
    assert {c["operations"] for c in counted} == {3}
    assert sum(c["raw_bytes_sent"] for c in counted) > 0
    assert sum(c["raw_bytes_sent"] for c in counted) == sum(c["raw_bytes_received"] for c in counted)
    assert sum(c["wire_bytes_sent"] for c in counted) == sum(c["wire_bytes_received"] for c in counted)
    assert sum(c["wire_bytes_sent"] for c in counted) >= sum(c["raw_bytes_sent"] for c in counted)
    assert all(c["exposed_seconds"] > 0 for c in counted)
