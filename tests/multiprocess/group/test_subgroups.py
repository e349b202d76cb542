"""Groups over subsets of the ranks, their options, splits, meshes."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from support.harness import Outcome, Ranks, ranks_fixture

# Four ranks at two sites, in an order that is not the sites'.
ranks = ranks_fixture({"2+2": ["b", "a", "a", "b"]})


def _every_subset() -> list[str]:
    """Sums over every subset of the ranks; each group is destroyed before the next is made."""
    rank, size = dist.get_rank(), dist.get_world_size()
    wrong = []
    for count in range(1, size + 1):
        for members in itertools.combinations(range(size), count):
            group = dist.new_group(list(members))
            if rank in members:
                tensor = torch.full((1000,), 2.0**rank)
                dist.all_reduce(tensor, group=group)
                gathered = [torch.zeros(1) for _ in members]
                dist.all_gather(gathered, torch.tensor([float(rank)]), group=group)
                if tensor[0] != sum(2.0**r for r in members) or [int(t) for t in gathered] != list(members):
                    wrong.append(f"{members}: {tensor[0]} {gathered}")
                dist.destroy_process_group(group)
    return wrong


def test_new_group_of_every_subset_reduces_over_its_ranks(ranks: Ranks) -> None:
    assert ranks.run(_every_subset) == [[]] * 4


def _short_lives() -> None:
    """Groups that are freed while Gloo's threads may still let go of the last tensors."""
    for _ in range(25):
        group = dist.new_group()
        gathered = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, torch.ones(1), group=group)
        dist.destroy_process_group(group)
        del group


def test_groups_that_are_freed_right_after_an_operation_do_not_hang(ranks: Ranks) -> None:
    ranks.run(_short_lives)


def _overlapping_groups() -> list[float]:
    """Works of several groups in flight at once, issued in a different order on each rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = list(itertools.combinations(range(size), 2))
    groups = {pair: dist.new_group(list(pair)) for pair in pairs}
    mine = [pair for pair in pairs if rank in pair]
    tensors = {pair: torch.full((50_000,), float(rank + 1)) for pair in mine}
    order = mine if rank % 2 else mine[::-1]
    works = [dist.all_reduce(tensors[pair], group=groups[pair], async_op=True) for pair in order]
    for work in works:
        work.wait()
    return [tensors[pair].mean().item() - (sum(pair) + 2) for pair in mine]


def test_groups_in_flight_together_do_not_mix(ranks: Ranks) -> None:
    assert ranks.run(_overlapping_groups) == [[0.0] * 3] * 4


def _codec_of_new_groups() -> tuple[str, str, str]:
    """Codecs of: the world, a group without options, a group with its own."""
    import geocomm
    from geocomm.group.backend.runtime import runtime

    def codec_of(group: dist.ProcessGroup) -> str:
        return runtime.find(group._get_backend(torch.device("cpu"))).options.codec

    plain = dist.new_group()
    other = dist.new_group(pg_options=geocomm.Options(codec="bf16"))
    return codec_of(dist.group.WORLD), codec_of(plain), codec_of(other)


def _world_options() -> object:
    import geocomm

    return geocomm.Options(codec="int8")


def test_new_group_without_options_inherits_those_of_the_world() -> None:
    with Ranks(["a", "b"]) as ranks:
        ranks.init(pg_options=_world_options())
        assert ranks.run(_codec_of_new_groups) == [("int8", "int8", "bf16")] * 2
        ranks.destroy()


def _timeouts_of_groups() -> list[timedelta]:
    given = dist.new_group(timeout=timedelta(seconds=7))
    groups = [dist.group.WORLD, dist.new_group(), given]
    seconds = [g._get_backend(torch.device("cpu")).options._timeout for g in groups]
    given.set_timeout(timedelta(seconds=9))
    return [*seconds, given._get_backend(torch.device("cpu")).options._timeout]


def test_new_group_timeouts_are_as_given(ranks: Ranks) -> None:
    expected = [timedelta(seconds=30), timedelta(minutes=30), timedelta(seconds=7), timedelta(seconds=9)]
    assert ranks.run(_timeouts_of_groups) == [expected] * 4


def _wrong_options() -> None:
    dist.new_group(pg_options={"codec": "int8"})


def test_new_group_with_options_of_another_type_fails_on_every_rank(ranks: Ranks) -> None:
    for outcome in ranks.outcomes(_wrong_options):
        outcome.require("TypeError")


def _other_streams() -> None:
    import geocomm

    dist.new_group(pg_options=geocomm.Options(streams=7))


def test_new_group_with_other_connection_options_fails_on_every_rank(ranks: Ranks) -> None:
    for outcome in ranks.outcomes(_other_streams):
        assert "streams" in outcome.require("InvalidArgumentError").message


def _split(partition: list[list[int]]) -> list[tuple[float, int]]:
    """Two rounds of splits over the same ranks. The names differ between the ranks, as torch's do once some made a
    group that others did not."""
    rank = dist.get_rank()
    results = []
    for round_ in range(2):
        mine = next((part for part in partition if rank in part), partition[0])
        child = dist.group.WORLD.split_group(mine, timedelta(seconds=20), None, f"name-{rank}-{round_}", "split")
        if rank not in mine:
            assert child is None
            continue
        tensor = torch.full((10,), float(rank + 1))
        child.allreduce([tensor]).wait()
        results.append((tensor[0].item(), child.size()))
        child.shutdown()
    return results


@pytest.mark.parametrize("partition", [[[0, 1], [2, 3]], [[0, 3], [1, 2]], [[1, 2, 3]], [[0, 1, 2, 3]]])
def test_split_group_with_names_that_differ_meets_its_ranks(ranks: Ranks, partition: list[list[int]]) -> None:
    results = ranks.run(_split, partition)
    for rank in range(4):
        part = next((part for part in partition if rank in part), None)
        expected = (float(sum(r + 1 for r in part)), len(part)) if part else None
        assert results[rank] == ([expected] * 2 if expected else [])


def _mesh() -> tuple[list[list[int]], list[int], list[int], float, float]:
    import geocomm

    mesh = geocomm.device_mesh("cpu")
    site, local = mesh["site"], mesh["local"]
    tensors = [torch.full((5,), 10.0 ** dist.get_rank()) for _ in range(2)]
    dist.all_reduce(tensors[0], group=site.get_group())
    dist.all_reduce(tensors[1], group=local.get_group())
    coordinate = mesh.get_coordinate()
    return mesh.mesh.tolist(), list(mesh.mesh_dim_names), coordinate, tensors[0][0].item(), tensors[1][0].item()


def test_device_mesh_of_equal_sites_has_site_and_local_dimensions(ranks: Ranks) -> None:
    results = ranks.run(_mesh)
    table = [[0, 3], [1, 2]]
    partners = {0: (1, 3), 3: (2, 0), 1: (0, 2), 2: (3, 1)}
    for rank, (mesh, names, coordinate, over_sites, inside) in enumerate(results):
        assert mesh == table
        assert names == ["site", "local"]
        assert table[coordinate[0]][coordinate[1]] == rank
        across, beside = partners[rank]
        assert over_sites == 10.0**rank + 10.0**across
        assert inside == 10.0**rank + 10.0**beside


def _uneven_mesh() -> None:
    import geocomm

    geocomm.device_mesh()


def test_device_mesh_of_unequal_sites_is_refused() -> None:
    with Ranks(["a", "a", "b"]) as ranks:
        before: list[Outcome] = ranks.outcomes(_uneven_mesh)
        for outcome in before:
            outcome.require("InvalidArgumentError")
        ranks.init()
        for outcome in ranks.outcomes(_uneven_mesh):
            assert "a: 2, b: 1" in outcome.require("InvalidArgumentError").message
        ranks.destroy()
