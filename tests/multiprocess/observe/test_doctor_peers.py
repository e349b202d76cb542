"""`geocomm doctor` in the ranks of a job: what differs, ways between sites, who dials whom."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from support.local_jobs import environment, free_port
from support.warm_executable import warm_executable


def job(*environments: dict[str, str], arguments: tuple[str, ...] = ("--json",)) -> list[tuple[int, str, str]]:
    """(status, stdout, stderr) of doctors of a job whose ranks have these variables."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(environments))}
    common |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    processes = [
        subprocess.Popen(
            [warm_executable(), "-m", "geocomm", "doctor", *arguments],
            env=environment(**common, RANK=str(rank)) | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, own in enumerate(environments)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


def by_name(output: str) -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for finding in json.loads(output)}


def test_ranks_that_differ_are_named_and_ways_between_sites_measured() -> None:
    a = {"GEOCOMM_SITE": "a"}
    (status, output, errors), *others = job(a, {"GEOCOMM_SITE": "b", "GEOCOMM_CODEC": "int8"}, a)
    assert status == 1, errors
    assert [(other[0], other[1]) for other in others] == [(0, ""), (0, "")]
    found = by_name(output)
    different = found["not alike: option codec"]
    assert different["state"] == "bad"
    assert "rank 1 (site b): int8" in different["value"]
    assert [name for name in found if name.startswith("not alike")] == ["not alike: option codec"]
    trips = [name for name in found if name.endswith("round trip")]
    for peer in range(3):
        assert any(f"to rank {peer} " in name for name in trips)
    assert all(found[name]["state"] == "ok" for name in trips)


def test_site_that_only_dials_out_looks_at_the_others_and_is_not_dialled() -> None:
    outbound = {"GEOCOMM_SITE": "b", "GEOCOMM_OUTBOUND_ONLY": "1"}
    (status, output, errors), *_ = job({"GEOCOMM_SITE": "a"}, outbound)
    found = by_name(output)
    assert found["site that only dials out"]["state"] == "ok"
    assert found["site that only dials out"]["value"].startswith("b:")
    ways = {name: finding for name, finding in found.items() if ": to rank" in name}
    not_tried = [name for name in ways if "to rank 1 " in name]
    assert [ways[name]["state"] for name in not_tried] == ["note"], ways
    assert any("to rank 0 " in name and name.endswith("round trip") for name in ways)
    assert status == 0, errors


def test_two_sites_that_only_dial_out_are_bad() -> None:
    both = {"GEOCOMM_OUTBOUND_ONLY": "1"}
    ((status, output, _), *_) = job({"GEOCOMM_SITE": "a"}, both | {"GEOCOMM_SITE": "b"}, both | {"GEOCOMM_SITE": "c"})
    assert status == 1
    bad = by_name(output)["sites that only dial out"]
    assert bad["state"] == "bad"
    assert bad["value"].startswith("b, c:")
    assert bad["fix"]


def test_rank_that_does_not_come_is_an_error_within_the_timeout() -> None:
    ((status, output, errors),) = job({"WORLD_SIZE": "2"}, arguments=("--timeout", "3"))
    assert (status, output) == (2, "")
    assert "geocomm doctor" in errors
