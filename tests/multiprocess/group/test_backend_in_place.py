"""GEOCOMM_BACKEND=geocomm, `geocomm run --backend geocomm`: scripts that name another backend, or none, as they are."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from geocomm.core.options import Options
from geocomm.group.backend.runtime import runtime
from geocomm.security.job_ca import JobCa
from support.harness import Ranks
from support.hub_groups import LIMIT, SITES, attempt, meet, ranks_at, total
from support.hub_jobs import job_in
from support.hub_support import HUB_HOST
from support.local_jobs import free_port

IN_PLACE = {"GEOCOMM_BACKEND": "geocomm"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    JobCa.create(folder, "run7", ["a", "b"], 30)
    return folder


@pytest.fixture(scope="module")
def ranks(keys: Path) -> Iterator[Ranks]:
    with ranks_at(SITES, keys, **IN_PLACE) as made:
        yield made


def is_geocomms(group: dist.ProcessGroup | None = None) -> bool:
    """What it is, whatever it is called."""
    return (group or dist.group.WORLD)._get_backend(torch.device("cpu")).name() == "geocomm"


def as_a_script(backend: str | None) -> dict[str, Any]:
    meet(backend)
    rank = dist.get_rank()
    inside = [dist.new_group(site, backend="gloo") for site in ([0, 1], [2, 3])][rank // 2]
    across = dist.new_group(backend="gloo")
    own = [dist.new_group(pair) for pair in ([0, 2], [1, 3])][rank % 2]
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("site", "local"))
    objects: list[Any] = [None] * 4
    dist.all_gather_object(objects, f"of {rank}")
    found = {
        "told": dist.get_backend(),
        "config": dist.get_backend_config(),
        "total": total(),
        "inside": (dist.get_backend(inside), is_geocomms(inside), total(inside)),
        "across": (dist.get_backend(across), is_geocomms(across), total(across)),
        "own": (dist.get_backend(own), is_geocomms(own), total(own)),
        "mesh": (
            is_geocomms(mesh["site"].get_group()),
            total(mesh["site"].get_group()),
            total(mesh.get_group("local")),
        ),
        "objects": objects,
        "is geocomm's": is_geocomms(),
    }
    if dist.get_backend() == "gloo":
        dist.monitored_barrier(timeout=LIMIT)
    dist.barrier()
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("backend", ["gloo", None, "cpu:gloo,cuda:geocomm"])
def test_groups_over_sites_are_geocomms_and_keep_the_name_that_the_script_gave_them(
    ranks: Ranks, backend: str | None
) -> None:
    told = backend or "undefined"
    for rank, found in enumerate(ranks.run(as_a_script, backend)):
        assert found["is geocomm's"]
        assert found["told"] == told
        assert ("gloo" in found["config"]) == ("gloo" in told or not torch.cuda.is_available())
        assert found["total"] == 10
        assert found["inside"] == ("gloo", False, 3 if rank < 2 else 7)
        assert found["across"] == ("gloo", True, 10)
        assert found["own"] == (told, True, (4, 6)[rank % 2])
        assert found["mesh"] == ((True, 4, 3), (True, 6, 3), (True, 4, 7), (True, 6, 7))[rank]
        assert found["objects"] == [f"of {other}" for other in range(4)]


def asks_for_nccl(backend: str) -> dict[str, Any]:
    meet(backend)
    found = {"told": dist.get_backend(), "is geocomm's": is_geocomms(), "total": total()}
    if not dist.is_nccl_available():
        # Only ranks of that site are to find out: the others may have NCCL.
        found["inside"] = attempt(lambda: dist.new_group([0, 1]))
    dist.barrier()
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_script_that_asks_for_nccl_is_told_so_and_where_it_is_missing_inside_a_site(ranks: Ranks, backend: str) -> None:
    for rank, found in enumerate(ranks.run(asks_for_nccl, backend)):
        assert (found["told"], found["is geocomm's"], found["total"]) == (backend, True, 10)
        if "inside" in found and rank < 2:
            assert found["inside"].startswith(
                "UnsupportedError: the script asks for a process group of NCCL inside site a"
            )
            assert "install a CUDA build of torch" in found["inside"]
        elif "inside" in found:
            assert found["inside"] == ""


def refused(backend: str) -> str:
    return attempt(lambda: meet(backend))


@pytest.mark.parametrize("backend", ["mpi", "ucc", "cpu:gloo,cuda:ucc"])
def test_backend_that_geocomm_does_not_stand_in_for_is_refused_at_every_rank(ranks: Ranks, backend: str) -> None:
    for told in ranks.run(refused, backend):
        assert told.startswith("InvalidArgumentError: the script asks for a process group of "), told
        assert ("mpi" if backend == "mpi" else "ucc") in told.partition(" over sites")[0]
        assert "have the script name" in told


def with_options() -> str:
    of_another: Any = dist.ProcessGroupGloo
    dist.init_process_group("gloo", init_method=os.environ["HUB"], timeout=LIMIT, pg_options=of_another._Options())
    own = dist.new_group(backend="gloo", pg_options=Options(codec="int8"))
    codecs = f"{runtime.group_of(None).options.codec},{runtime.group_of(own).options.codec}"
    dist.barrier(own)
    dist.destroy_process_group()
    return codecs


def test_options_of_another_backend_are_left_out_and_geocomms_count(ranks: Ranks) -> None:
    assert ranks.run(with_options) == ["none,int8"] * 4


def split_sources() -> list[Any]:
    meet("gloo")
    world: Any = dist.group.WORLD
    c10d: Any = dist.distributed_c10d
    world.bound_device_id = torch.device("cpu", 0)  # as init_process_group(device_id=...) does on a GPU
    assert world._get_backend(torch.device("cpu")).supports_splitting
    more = ["gloo"] * (len(inspect.signature(c10d._get_split_source).parameters) - 1)  # one since torch 2.15
    found = [c10d._get_split_source(world, *more)]
    dist.barrier()
    dist.destroy_process_group()
    return found


def test_group_of_nccl_inside_a_site_is_never_split_from_geocomms(ranks: Ranks) -> None:
    assert ranks.run(split_sources) == [[None]] * 4


def told_names(backend: str, name: str) -> tuple[str, bool, str, bool]:
    os.environ["GEOCOMM_BACKEND_NAME"] = name
    meet(backend)
    part = dist.new_group([0, 2])
    in_part = dist.get_rank() in (0, 2)
    found = (
        dist.get_backend(),
        is_geocomms(),
        dist.get_backend(part) if in_part else "",
        in_part and is_geocomms(part),
    )
    dist.barrier()
    dist.destroy_process_group()
    del os.environ["GEOCOMM_BACKEND_NAME"]
    return found


@pytest.mark.parametrize("name", ["geocomm", "nccl", "cpu:gloo,cuda:nccl"])
def test_script_is_told_the_name_that_is_asked_for(ranks: Ranks, name: str) -> None:
    inside, outside = (name, True, name, True), (name, True, "", False)
    assert ranks.run(told_names, "gloo", name) == [inside, outside, inside, outside]


def test_job_of_one_site_works_as_with_its_own_backend(keys: Path) -> None:
    with ranks_at(["a", "a"], keys, **IN_PLACE) as ranks:
        assert ranks.run(pair_inside) == [("gloo", 3.0, False, 3.0)] * 2


def pair_inside() -> tuple[str, float, bool, float]:
    meet("gloo")
    group = dist.new_group(backend="gloo")
    found = (dist.get_backend(), total(), is_geocomms(group), total(group))
    dist.destroy_process_group()
    return found


def refused_variable(variable: str, value: str) -> str:
    before = os.environ.get(variable)
    os.environ[variable] = value
    told = refused("gloo")
    os.environ.pop(variable)
    os.environ |= {} if before is None else {variable: before}
    return told


@pytest.mark.parametrize(
    ("variable", "value", "meant"), [("GEOCOMM_BACKEND", "geocom", "geocomm"), ("GEOCOMM_BACKEND_NAME", "ncl", "nccl")]
)
def test_variable_that_cannot_be_is_refused(ranks: Ranks, variable: str, value: str, meant: str) -> None:
    for told in ranks.run(refused_variable, variable, value):
        assert told.startswith(f"InvalidArgumentError: {variable} is '{value}'; it must be one of script, geocomm")
        assert f"did you mean '{meant}'" in told


PROGRAM = """
import json, os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
tensor = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(tensor)
report = {"told": dist.get_backend(), "total": tensor[0].item(), "site": os.environ["GEOCOMM_SITE"]}
name = f"{sys.argv[1]}/rank{dist.get_rank()}"
with open(name + ".new", "w") as file:
    json.dump(report, file)
os.rename(name + ".new", name + ".json")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("of_second", [["--backend", "geocomm"], []], ids=["both", "one"])
def test_geocomm_run_with_the_option_runs_a_script_of_gloo(keys: Path, tmp_path: Path, of_second: list[str]) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    port = free_port(HUB_HOST)
    with job_in(tmp_path / "job") as job:
        for node, options in enumerate([["--backend", "geocomm"], of_second]):
            job.start(
                *("-m", "geocomm", "run", "--hub", f"{HUB_HOST}:{port}", *options, "--"),
                *("--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1", str(program), str(job.folder)),
                GEOCOMM_KEYS=str(keys / "ab"[node]),
            )
        if of_second:
            assert job.end() == [0, 0], job.output()
            for rank, site in enumerate("ab"):
                assert job.fact(f"rank{rank}") == {"told": "gloo", "total": 3.0, "site": site}
            assert "2 sites (a 1 rank, b 1 rank), TLS 1.3" in job.output()
        else:
            assert job.end() == [2, 2], job.output()
            for node in range(2):
                (line,) = [line for line in job.log(node).read_text().splitlines() if line.startswith("geocomm run: ")]
                assert (
                    "the nodes differ in --backend: node 0 of 2 (site a): geocomm; node 1 of 2 (site b): script" in line
                )
