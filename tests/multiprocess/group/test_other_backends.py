"""Groups of Gloo and others beside geocomm's: refused over sites that have keys, as ever inside a site."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from geocomm.group.rendezvous.hub_rendezvous import loopback_store
from geocomm.security.job_ca import JobCa
from support.harness import Ranks
from support.hub_groups import SITES, attempt, meet, ranks_at, total
from support.hub_support import HUB_HOST


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    JobCa.create(folder, "run7", ["a", "b"], 30)
    return folder


@pytest.fixture(scope="module")
def ranks(keys: Path) -> Iterator[Ranks]:
    """Those of SITES."""
    with ranks_at(SITES, keys) as made:
        yield made


def beside_geocomm() -> dict[str, Any]:
    meet("geocomm")
    rank = dist.get_rank()
    found: dict[str, Any] = {
        "all": attempt(lambda: dist.new_group(backend="gloo")),
        "some": attempt(lambda: dist.new_group([0, 2], backend="gloo")),
        "half": attempt(lambda: dist.new_group(backend="cpu:gloo,cuda:geocomm")),
        "alone": attempt(lambda: dist.new_group([rank], backend="gloo", use_local_synchronization=True)),
    }
    inside = [dist.new_group(site, backend="gloo") for site in ([0, 1], [2, 3])]
    found["inside"] = total(inside[rank // 2])
    found["own"] = total(dist.new_group([1, 2])) if rank in (1, 2) else attempt(lambda: dist.new_group([1, 2]))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("site", "local"))
    found["mesh"] = (total(mesh["site"].get_group()), total(mesh["local"].get_group()))
    dist.barrier()
    found["total"] = total()
    dist.destroy_process_group()
    return found


def test_other_backend_beside_geocomm_is_refused_over_sites_at_every_rank_and_works_inside_one(ranks: Ranks) -> None:
    for rank, found in enumerate(ranks.run(beside_geocomm)):
        for group in ("all", "some", "half"):  # `some` at the ranks that are not in it, too
            assert found[group].startswith("InvalidArgumentError: a process group of gloo over the sites a, b"), group
            assert 'new_group(backend="geocomm")' in found[group]
        assert found["alone"] == ""
        assert found["inside"] == (3 if rank < 2 else 7)
        assert found["own"] == (5 if rank in (1, 2) else "")
        assert found["mesh"] == ((4, 3), (6, 3), (4, 7), (6, 7))[rank]
        assert found["total"] == 10


def default_of(backend: str | None) -> str:
    refused = attempt(lambda: meet(backend))
    if not refused:
        assert total() == sum(range(1, dist.get_world_size() + 1))
        dist.destroy_process_group()
    return refused


@pytest.mark.parametrize("backend", [None, "gloo", "nccl", "cpu:gloo,cuda:nccl", "cpu:gloo,cuda:geocomm"])
def test_default_group_of_another_backend_over_sites_is_refused_at_every_rank(
    ranks: Ranks, backend: str | None
) -> None:
    for refused in ranks.run(default_of, backend):
        assert refused.startswith("InvalidArgumentError: a process group of "), refused
        assert ("nccl" if backend == "nccl" else "gloo") in refused
        assert 'init_process_group("geocomm")' in refused
        assert "GEOCOMM_SECURITY=insecure" in refused


def mesh_alone() -> str:
    return attempt(lambda: init_device_mesh("cpu", (2,)))


def test_device_mesh_that_makes_the_default_group_is_refused_under_geocomm_run(keys: Path) -> None:
    store = loopback_store()  # as `geocomm run` keeps it, beside the ranks
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    with ranks_at(["a", "b"], keys, GEOCOMM_HUB=f"{HUB_HOST}:29400", **meeting) as ranks:
        assert all("sends PLAINTEXT" in refused for refused in ranks.run(mesh_alone))


def test_geocomm_named_by_device_is_made_over_sites(ranks: Ranks) -> None:
    assert ranks.run(default_of, "cpu:geocomm,cuda:geocomm") == [""] * 4


def test_refused_job_can_make_geocomms_group_in_the_same_process(ranks: Ranks) -> None:
    assert all(ranks.run(default_of, "gloo"))
    assert ranks.run(default_of, "geocomm") == [""] * 4


def test_job_of_one_site_keeps_its_backend(keys: Path) -> None:
    with ranks_at(["a", "a"], keys) as ranks:
        assert ranks.run(default_of, "gloo") == ["", ""]


def test_insecure_job_over_sites_keeps_its_backend(keys: Path) -> None:
    with ranks_at(SITES, keys, GEOCOMM_SECURITY="insecure") as ranks:
        assert ranks.run(default_of, "gloo") == [""] * 4


def test_one_insecure_rank_does_not_open_the_job(keys: Path) -> None:
    with ranks_at(["a", "b"], keys) as ranks:
        ranks.run(insecure_at, 1)
        assert all("sends PLAINTEXT" in refused for refused in ranks.run(default_of, "gloo"))


def insecure_at(rank: int) -> None:
    if int(os.environ["RANK"]) == rank:
        os.environ["GEOCOMM_SECURITY"] = "insecure"


def test_job_without_a_hub_and_keys_keeps_its_backend() -> None:
    with Ranks(["a", "b"]) as ranks:
        ranks.init()
        assert ranks.run(gloo_beside) == [3.0, 3.0]


def gloo_beside() -> float:
    group = dist.new_group(backend="gloo")
    return total(group)
